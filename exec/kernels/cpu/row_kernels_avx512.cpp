// RowKernels compiled for processors with AVX512: the flags stand in the CMakeLists.txt of the project.
#define WT_ISA avx512
#include "exec/kernels/cpu/row_kernels_impl.hpp"
