#include <cmath>

#include "pool.h"
#include "simd.h"

using namespace vtk;

static void norm_row(const float* x, float* residual, const float* weight, float eps, int64_t width, float* out) {
    V squares = set1(0);
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = width - i < kLanes ? int(width - i) : kLanes;
        V value = n == kLanes ? load(x + i) : load_first(x + i, n);
        if (residual) {
            value = value + (n == kLanes ? load(residual + i) : load_first(residual + i, n));
            n == kLanes ? store(residual + i, value) : store_first(residual + i, value, n);
        }
        squares = fma(value, value, squares);
    }
    const V factor = set1(1 / std::sqrt(sum_lanes(squares) / float(width) + eps));
    const float* source = residual ? residual : x;
    for (int64_t i = 0; i < width; i += kLanes) {
        const int n = width - i < kLanes ? int(width - i) : kLanes;
        if (n == kLanes)
            store(out + i, load(source + i) * factor * load(weight + i));
        else
            store_first(out + i, load_first(source + i, n) * factor * load_first(weight + i, n), n);
    }
}

// x, residual (or null) and out: (rows, width) contiguous.
VTK_API void vtk_rms_norm(const float* x, float* residual, const float* weight, float eps, int64_t rows, int64_t width,
                          float* out) {
    parallel_for(rows, 4.0 * double(rows * width), [&](int64_t row) {
        const int64_t start = row * width;
        norm_row(x + start, residual ? residual + start : nullptr, weight, eps, width, out + start);
    });
}
