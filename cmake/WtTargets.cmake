# Folder = CMake target = namespace part.

# wt_library(core/base DEPS fmt::fmt ...): static library wt_core_base from all .cpp below the folder, but for those that
# match EXCEPT. A dependency written as a folder is the target of that folder.
function(wt_library folder)
  cmake_parse_arguments(arg "" "EXCEPT" "DEPS" ${ARGN})
  string(REPLACE "/" "_" name "wt_${folder}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  if(arg_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "${arg_EXCEPT}")
  endif()
  get_property(generated GLOBAL PROPERTY WT_REGISTRY_${folder})
  list(APPEND sources ${generated})
  set(kind INTERFACE)
  if(sources)
    add_library(${name} STATIC ${sources})
    set(kind PUBLIC)
  else()
    add_library(${name} INTERFACE)
  endif()
  target_link_libraries(${name} ${kind} wt_include)
  if(sources)
    target_link_libraries(${name} PRIVATE wt_flags)
  endif()
  string(REGEX REPLACE "^wt_" "" export_name ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${export_name})
  add_library(Windtunnel::${export_name} ALIAS ${name})
  foreach(dep IN LISTS arg_DEPS)
    if(NOT dep MATCHES "::")
      string(REPLACE "/" "_" dep "wt_${dep}")
    endif()
    target_link_libraries(${name} ${kind} ${dep})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY WT_LIBRARIES ${name})
endfunction()

# wt_registry(core/lower/schedules TYPE Schedule HEADER core/lower/schedule.hpp NAMESPACE wt::lower)
# Every .cpp of the folder defines one `extern const TYPE <folder>_<stem>`; the table `all_<folder>()` is made
# from the file names, so adding one edits no other file. A '-' or a leading digit is allowed in a stem.
function(wt_registry folder)
  cmake_parse_arguments(arg "" "TYPE;HEADER;NAMESPACE;LIBRARY" "" ${ARGN})
  get_filename_component(leaf ${folder} NAME)
  get_filename_component(parent ${folder} DIRECTORY)
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.cpp")
  set(externs "")
  set(rows "")
  set(count 0)
  foreach(file IN LISTS files)
    get_filename_component(stem ${file} NAME_WE)
    string(MAKE_C_IDENTIFIER "${leaf}_${stem}" symbol)
    string(APPEND externs "extern const ${arg_TYPE} ${symbol};\n")
    string(APPEND rows "      &${symbol},\n")
    math(EXPR count "${count} + 1")
  endforeach()
  set(out "${PROJECT_BINARY_DIR}/generated/${folder}_registry.cpp")
  file(CONFIGURE OUTPUT "${out}" CONTENT "// Generated from the file names in ${folder}/.
#include \"${arg_HEADER}\"
namespace ${arg_NAMESPACE} {
${externs}
std::span<const ${arg_TYPE}* const> all_${leaf}() {
  static const ${arg_TYPE}* const table[] = {
${rows}      nullptr};
  return {table, ${count}};
}
}  // namespace ${arg_NAMESPACE}
" @ONLY)
  # A registry belongs to the library of the folder above it, core/lower for core/lower/schedules, or to LIBRARY.
  if(arg_LIBRARY)
    set(parent ${arg_LIBRARY})
  endif()
  set_property(GLOBAL APPEND PROPERTY WT_REGISTRY_${parent} "${out}")
endfunction()

# For code that is compiled often and run little (tests, the command line): a third less time in the compiler, half under
# the sanitizers.
function(wt_little_optimised target)
  if(WT_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# wt_test(core/plan [DEPS ...] [LABELS threads] [EXCEPT regex]): one test program per folder of tests/, from all .cpp in it
# but for those that match EXCEPT. The label `threads` means: also run under ThreadSanitizer.
add_custom_target(threads_tests)
function(wt_test folder)
  cmake_parse_arguments(arg "" "EXCEPT" "DEPS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp")
  if(arg_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "${arg_EXCEPT}")
  endif()
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" name "test_${folder}")
  add_executable(${name} ${sources})
  wt_little_optimised(${name})
  target_link_libraries(${name} PRIVATE wt_flags GTest::gtest_main GTest::gmock)
  foreach(dep IN LISTS arg_DEPS)
    if(NOT dep MATCHES "::")
      string(REPLACE "/" "_" dep "wt_${dep}")
    endif()
    target_link_libraries(${name} PRIVATE ${dep})
  endforeach()
  target_compile_definitions(${name} PRIVATE WT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                             WT_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(threads_tests ${name})
  endif()
  set(properties TIMEOUT 300)
  if(arg_LABELS)
    list(APPEND properties LABELS "${arg_LABELS}")
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${folder}:" NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                       PROPERTIES ${properties})
endfunction()

# wt_mpi_test(exec/mpi RANKS 1 2 4 DEPS ...): one test program from the folder, with a main of its own, run whole by mpirun
# on each of these numbers of ranks. Without MPI the test says that it was skipped.
function(wt_mpi_test folder)
  cmake_parse_arguments(arg "" "" "RANKS;DEPS" ${ARGN})
  if(NOT TARGET MPI::MPI_CXX OR NOT WT_MPIRUN)
    add_test(NAME "${folder}" COMMAND ${CMAKE_COMMAND} -E echo "skipped: built without MPI")
    set_tests_properties("${folder}" PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: built without MPI")
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cpp")
  string(REPLACE "/" "_" name "test_${folder}")
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE wt_flags GTest::gtest)
  foreach(dep IN LISTS arg_DEPS)
    string(REPLACE "/" "_" dep "wt_${dep}")
    target_link_libraries(${name} PRIVATE ${dep})
  endforeach()
  foreach(ranks IN LISTS arg_RANKS)
    add_test(NAME "${folder}:${ranks} ranks" COMMAND ${WT_MPIRUN} -np ${ranks} $<TARGET_FILE:${name}>)
    set_tests_properties("${folder}:${ranks} ranks" PROPERTIES TIMEOUT 300 PROCESSORS 2)
  endforeach()
endfunction()
