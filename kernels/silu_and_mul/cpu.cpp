#include "pool.h"
#include "simd.h"

using namespace vtk;

static V silu_mul(V gate, V up) { return gate / (set1(1) + exp(set1(0) - gate)) * up; }

// gate_up: (rows, 2 * width) contiguous -> out (rows, width).
VTK_API void vtk_silu_and_mul(const float* gate_up, int64_t rows, int64_t width, float* out) {
    parallel_for(rows, 20.0 * double(rows * width), [&](int64_t row) {
        const float *gate = gate_up + row * 2 * width, *up = gate + width;
        float* target = out + row * width;
        int64_t i = 0;
        for (; i + kLanes <= width; i += kLanes) store(target + i, silu_mul(load(gate + i), load(up + i)));
        const int rest = int(width - i);
        if (rest) store_first(target + i, silu_mul(load_first(gate + i, rest), load_first(up + i, rest)), rest);
    });
}
