// The words of CUDA's own crt/host_defines.h that its runtime headers use, for a compiler that knows none of them.
//
// torch installs the runtime's headers (nvidia-cuda-runtime), but not the package that this file is in.
#pragma once

#define __host__
#define __device__
#define __global__
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __location__(where)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define CUDARTAPI
#define CUDARTAPI_CDECL
