#include "pool.h"
#include "weight_formats.h"

using namespace vtk;

template <class Format>
static void dequantize_row(const Panel<Format>& panel, int lane, int64_t width, float* out) {
    float tile[kTile * kLanes];
    for (int64_t k0 = 0; k0 < width; k0 += kTile) {
        const int64_t depth = width - k0 < kTile ? width - k0 : kTile;
        panel.dequantize(k0, depth, tile);
        for (int64_t k = 0; k < depth; k++) out[k0 + k] = tile[k * kLanes + lane];
    }
}

// ids in range -> out (count, width) contiguous.
VTK_API void vtk_embedding(const int64_t* ids, int64_t count, int64_t width, int format, const void* values,
                           const void* scales, float* out) {
    with_format(format, [&](auto tag) {
        using Format = decltype(tag);
        parallel_for(count, 40.0 * double(count * width), [&](int64_t i) {
            const Panel<Format> panel(values, scales, ids[i] / kLanes, width);
            dequantize_row(panel, int(ids[i] % kLanes), width, out + i * width);
        });
    });
}
