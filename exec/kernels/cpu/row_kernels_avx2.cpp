// RowKernels compiled for processors with AVX2: the flags stand in the CMakeLists.txt of the project.
#define WT_ISA avx2
#include "exec/kernels/cpu/row_kernels_impl.hpp"
