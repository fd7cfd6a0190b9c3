// RowKernels compiled for any processor of the target: the flags stand in the CMakeLists.txt of the project.
#define WT_ISA baseline
#include "exec/kernels/cpu/row_kernels_impl.hpp"
