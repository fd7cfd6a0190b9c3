# cmake --install and packages. Headers, libraries, data, and a config for find_package(Windtunnel).
# Two components: `runtime` (program and data) and `dev` (libraries, headers, CMake files). The version is the one of
# project() in the top CMakeLists.txt.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(data_dir ${CMAKE_INSTALL_DATADIR}/windtunnel)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Windtunnel)

install(TARGETS windtunnel RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
if(TARGET windtunnel-gui)
  install(TARGETS windtunnel-gui RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
foreach(folder IN ITEMS models cluster_specs data examples)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${data_dir} COMPONENT runtime)
  endif()
endforeach()

# Windtunnel::Windtunnel is everything; Windtunnel::core_plan and the like are the parts.
get_property(libraries GLOBAL PROPERTY WT_LIBRARIES)
add_library(wt_all INTERFACE)
target_link_libraries(wt_all INTERFACE ${libraries})
set_target_properties(wt_all PROPERTIES EXPORT_NAME Windtunnel)
add_library(Windtunnel::Windtunnel ALIAS wt_all)
set_target_properties(wt_flags PROPERTIES EXPORT_NAME flags)
set_target_properties(wt_include PROPERTIES EXPORT_NAME include)

install(TARGETS ${libraries} wt_all wt_flags wt_include EXPORT Windtunnel
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/windtunnel COMPONENT dev)
install(EXPORT Windtunnel NAMESPACE Windtunnel:: FILE WindtunnelTargets.cmake DESTINATION ${config_dir} COMPONENT dev)
foreach(folder IN ITEMS core sim exec import study)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/windtunnel
            COMPONENT dev FILES_MATCHING PATTERN *.hpp)
  endif()
endforeach()

get_property(packages GLOBAL PROPERTY WT_FIND_DEPENDENCIES)
set(WT_FIND_DEPENDENCIES "")
foreach(package IN LISTS packages)
  string(APPEND WT_FIND_DEPENDENCIES "find_dependency(${package})\n")
endforeach()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/WindtunnelConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/WindtunnelConfig.cmake
                              INSTALL_DESTINATION ${config_dir} PATH_VARS data_dir)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/WindtunnelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/WindtunnelConfig.cmake ${PROJECT_BINARY_DIR}/WindtunnelConfigVersion.cmake
        DESTINATION ${config_dir} COMPONENT dev)

if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME windtunnel)
  set(CPACK_PACKAGE_VENDOR Windtunnel)
  set(CPACK_PACKAGE_CONTACT "Windtunnel developers <windtunnel@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL runtime dev)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME windtunnel)
  set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_DEV_PACKAGE_NAME windtunnel-dev)
  set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
      "windtunnel (= ${PROJECT_VERSION}), pkg-config, libfmt-dev, libyaml-cpp-dev, nlohmann-json3-dev, libtomlplusplus-dev, libzstd-dev, zlib1g-dev, libeigen3-dev, libdnnl-dev")
  include(CPack)
endif()
