# How the CPU kernels are compiled. Nothing here changes a trace of the simulator: these files are measured, not compared
# bit for bit across compilers, so products and sums may be contracted.
set(kernels exec/kernels/cpu)
file(GLOB wt_kernel_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${kernels}/*.cpp")
# Loops may be vectorised as if no one looked at errno or the floating-point flags.
set_property(SOURCE ${wt_kernel_sources} APPEND PROPERTY COMPILE_OPTIONS -fno-math-errno -fno-trapping-math
             -ffp-contract=fast)
# One set of row loops for each instruction set, chosen when the program runs (exec/kernels/cpu/row_kernels.cpp).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_property(SOURCE ${kernels}/row_kernels_avx2.cpp APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mfma -mf16c)
  set_property(SOURCE ${kernels}/row_kernels_avx512.cpp APPEND PROPERTY COMPILE_OPTIONS
               -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c -mprefer-vector-width=512)
else()
  set_property(SOURCE ${kernels}/row_kernels_avx2.cpp ${kernels}/row_kernels_avx512.cpp PROPERTY HEADER_FILE_ONLY ON)
endif()
# oneDNN multiplies, on threads of ours: its OpenMP is told so (exec/kernels/cpu/product.cpp).
target_link_libraries(wt_exec PUBLIC dnnl gomp)
