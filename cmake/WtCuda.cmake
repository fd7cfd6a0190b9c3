# wt_cuda: devices and communicators for NVIDIA GPUs, where a CUDA compiler was found. With WT_CUDA=ON it is part of
# everything and the tests run on it; with AUTO only `--target windtunnel_cuda` builds it: three architectures take minutes.
if(NOT WT_HAVE_CUDA)
  return()
endif()
if(WT_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${WT_CCACHE}")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # A100, H100 and H200, B200; PTX of the last for what comes after
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 13 has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
find_package(CUDAToolkit REQUIRED)
find_path(WT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(WT_NCCL nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)

file(GLOB sources CONFIGURE_DEPENDS exec/device/cuda/*.cpp exec/device/cuda/*.cu)
add_library(wt_cuda STATIC EXCLUDE_FROM_ALL ${sources} exec/comm/nccl/nccl.cpp)
target_compile_options(wt_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr>")
target_compile_options(wt_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow>")
target_include_directories(wt_cuda SYSTEM PRIVATE ${WT_NCCL_INCLUDE})
target_link_libraries(wt_cuda PUBLIC wt_exec CUDA::cudart CUDA::cublasLt ${WT_NCCL} ${CMAKE_DL_LIBS})
target_compile_definitions(wt_cuda INTERFACE WT_HAVE_CUDA)

add_custom_target(windtunnel_cuda DEPENDS wt_cuda)
