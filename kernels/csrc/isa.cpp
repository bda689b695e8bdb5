#include "simd.h"

// The best of the compiled instruction sets that this processor has; asked of the portable library only.
VTK_API const char* vtk_best_isa() {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    return avx2 && avx512 ? "avx512" : avx2 ? "avx2" : "portable";
#else
    return "portable";
#endif
}
