// WT_HOST_DEVICE marks arithmetic that both devices run. On the host it is always inlined: a file compiled for a newer
// instruction set must not leave a copy behind that an older machine could be linked to.
#pragma once

#if defined(__CUDACC__)
#define WT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define WT_HOST_DEVICE inline __attribute__((always_inline))
#endif
