// A few rows times packed weights: each weight becomes a float in a register and is used at once for all rows.
#pragma once

#include "weight_formats.h"

namespace vtk {

// Register tiles: rows, and panels beside each other for so many rows.
constexpr int kMaxPanels = 4;
#if defined(__AVX512F__)
constexpr int kStoredRows = 16;
constexpr int panels_for(int rows) { return rows == 1 ? 4 : rows <= 10 ? 2 : 1; }
#else
constexpr int kStoredRows = 8;
constexpr int panels_for(int rows) { return rows <= 3 ? 2 : 1; }
#endif

// One part of the lanes of `contract_stored`. The panels that follow are fetched meanwhile: a stream ends with its page
// for the processor's own prefetcher.
template <class Format, int Rows, int Panels>
void contract_part(const Panel<Format>* panels, int64_t tiles, const float* x, int part, float* out) {
    constexpr int kLevel = Rows == 1 ? 2 : 1;  // one row is as fast as memory: more fetches fit before the second level
    NativeF sum[Rows][Panels] = {};
    const int64_t next_values = Panels * tiles * Format::tile_bytes, next_scales = Panels * Format::scale_bytes(tiles);
    const int64_t scale_step = Format::scale_bytes(tiles) / tiles;
    for (int64_t tile = 0; tile < tiles; tile++) {
#pragma GCC unroll 4
        for (int v = 0; v < Panels; v++) {
            prefetch<kLevel>(panels[v].values + tile * Format::tile_bytes + next_values, Format::tile_bytes);
            prefetch<kLevel>(panels[v].scales + tile * scale_step + next_scales, 1);
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            NativeF scale[Panels], base[Panels];
#pragma GCC unroll 4
            for (int v = 0; v < Panels; v++) {
                const TileScale all = Format::scale(panels[v].scales, tile, part);
                scale[v] = half ? all.second : all.first;
                base[v] = base_of<Format>(all, half);
            }
            for (int i = half * kWords / 2; i < (half + 1) * kWords / 2; i++) {
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    NativeF weight[Panels];
#pragma GCC unroll 4
                    for (int v = 0; v < Panels; v++) {
                        const NativeF bits = bits_of<Format>(panels[v].values + tile * Format::tile_bytes, i, j, part);
                        weight[v] = dequantize<Format>(bits, scale[v], base[v]);
                    }
#pragma GCC unroll 16
                    for (int r = 0; r < Rows; r++) {
                        const NativeF value = native_set1(x[r]);
#pragma GCC unroll 4
                        for (int v = 0; v < Panels; v++) sum[r][v] = native_fma(value, weight[v], sum[r][v]);
                    }
                    x += Rows;
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < Panels; v++)
            std::memcpy(out + (r * Panels + v) * kLanes + part * kNativeLanes, &sum[r][v], sizeof sum[r][v]);
}

// c[r * ldc + lane] = sum over k of x[k * Rows + r] * panel[k][lane] for `Panels` panels beside each other, of which the
// last has `last` lanes; the same chains of multiply-adds as in `contract`.
template <class Format, int Rows, int Panels>
void contract_stored(const Panel<Format>* panels, int64_t tiles, const float* x, float* c, int64_t ldc, int last) {
    float out[Rows * Panels * kLanes];
#pragma GCC unroll 1
    for (int part = 0; part < kParts; part++) contract_part<Format, Rows, Panels>(panels, tiles, x, part, out);
    for (int r = 0; r < Rows; r++)
        if (last == kLanes)
            std::memcpy(c + r * ldc, out + r * Panels * kLanes, Panels * kLanes * sizeof(float));
        else
            std::memcpy(c + r * ldc, out + r * Panels * kLanes, size_t((Panels - 1) * kLanes + last) * sizeof(float));
}

}  // namespace vtk
