#include <algorithm>
#include <cmath>
#include <vector>

#include "contract.h"
#include "contract_stored.h"
#include "pool.h"
#include "weight_formats.h"

using namespace vtk;

namespace {

struct Problem {
    const float* x;
    int64_t ldx, rows, depth, outputs;
    const void *values, *scales;
    const float* bias;
    float* y;
    int64_t ldy;

    int64_t panels() const { return (outputs + kLanes - 1) / kLanes; }
    int lanes_of(int64_t panel) const { return int(std::min<int64_t>(kLanes, outputs - panel * kLanes)); }
    template <class Format>
    Panel<Format> panel(int64_t index) const {
        return {values, scales, index, depth};
    }
    double work() const { return double(rows) * double(depth) * double(outputs); }

    void add_bias(int64_t first_panel, int64_t last_panel) const {
        const int64_t start = first_panel * kLanes, stop = std::min(last_panel * kLanes, outputs);
        if (bias)
            for (int64_t row = 0; row < rows; row++)
                for (int64_t n = start; n < stop; n++) y[row * ldy + n] += bias[n];
    }
};

// One buffer per thread, type and use, which only grows.
enum class Use { kPackedRows, kDense, kActivations };

template <class T, Use>
T* scratch(size_t count) {
    thread_local std::vector<T> buffer;
    if (buffer.size() < count) buffer.resize(count);
    return buffer.data();
}

// Panels that one item of the parallel loop takes: a multiple of `unit`, some 64 items in all.
int64_t panels_per_item(int64_t panels, int64_t unit) { return std::max<int64_t>(1, panels / (64 * unit)) * unit; }

// Exact -----------------------------------------------------------------------------------------------------------

// Depth of a dequantized panel group: 16 KiB of the first-level cache where one tile of rows reads it, else 96 KiB of the
// second level, half of that for a batch in decode, whose packed rows take little of it.
int64_t chunk_of(int64_t depth, int64_t rows) {
    const int64_t most = rows <= kMaxRows ? 64 : rows <= 64 ? 384 : 768, chunks = (depth + most - 1) / most;
    return tiles_of((depth + chunks - 1) / chunks) * kTile;
}

// Row tiles as even as possible, each packed by depth.
struct PackedRows {
    int64_t rows, depth, tiles;
    float* data;

    PackedRows(const Problem& p, int64_t most) : rows(p.rows), depth(p.depth), tiles((p.rows + most - 1) / most) {
        data = scratch<float, Use::kPackedRows>(size_t(rows * depth));
        parallel_for(tiles, 2.0 * double(rows * depth), [&](int64_t tile) {
            const int64_t first = start(tile);
            pack(p.x + first * p.ldx, p.ldx, int(start(tile + 1) - first), data + first * depth);
        });
    }

    // x[r * ldx + k] to out[k * count + r]. Whole vectors are stored: what is too much of one, the next overwrites.
    void pack(const float* x, int64_t ldx, int count, float* out) const {
        constexpr int kBlocks = (std::max(kMaxRows, kStoredRows) + kNativeLanes - 1) / kNativeLanes;
        const float* const last = out + depth * count - kNativeLanes;
        int64_t k = 0;
        for (; k + kNativeLanes <= depth; k += kNativeLanes) {
            NativeF block[kBlocks * kNativeLanes] = {};
            for (int r = 0; r < count; r++) block[r] = native_load(x + r * ldx + k);
            for (int first = 0; first < count; first += kNativeLanes) transpose(block + first);
            for (int i = 0; i < kNativeLanes; i++, out += count)
                for (int first = 0; first < count; first += kNativeLanes) {
                    const size_t lanes = size_t(std::min(kNativeLanes, count - first));
                    if (out + first <= last)
                        std::memcpy(out + first, &block[first + i], sizeof(NativeF));
                    else
                        std::memcpy(out + first, &block[first + i], lanes * sizeof(float));
                }
        }
        for (; k < depth; k++, out += count)
            for (int r = 0; r < count; r++) out[r] = x[r * ldx + k];
    }
    int64_t start(int64_t tile) const { return rows * tile / tiles; }
};

template <class Format>
void exact_panels(const Problem& p, const PackedRows& x, int64_t first, int64_t count) {
    constexpr bool kDirect = std::is_same_v<Format, FloatFormat<float>>;
    const int64_t chunk = chunk_of(p.depth, p.rows);
    float* dense = kDirect ? nullptr : scratch<float, Use::kDense>(size_t(count * chunk * kLanes));
    const float* columns[vectors_for(1)];
    for (int64_t k0 = 0; k0 < p.depth; k0 += chunk) {
        const int64_t depth = std::min(chunk, p.depth - k0);
        for (int64_t i = 0; i < count; i++) {
            const Panel<Format> panel = p.panel<Format>(first + i);
            columns[i] = kDirect ? (const float*)panel.values + k0 * kLanes : dense + i * chunk * kLanes;
            if (!kDirect) panel.dequantize(k0, depth, dense + i * chunk * kLanes);
        }
        const Columns<float> b{columns, int(count), kLanes};
        for (int64_t tile = 0; tile < x.tiles; tile++) {
            const int64_t row = x.start(tile), rows = x.start(tile + 1) - row;
            contract_tile(int(rows), x.data + row * p.depth + k0 * rows, b, depth, p.y + row * p.ldy + first * kLanes, p.ldy,
                          k0 > 0, p.lanes_of(first + count - 1));
        }
    }
}

// Panels `first` to `stop` for the rows of one tile, whose number becomes a constant.
template <class Format, int Rows = kStoredRows>
void stored_panels(const Problem& p, const PackedRows& x, int64_t tile, int64_t first, int64_t stop) {
    const int64_t row = x.start(tile);
    if constexpr (Rows > 1)
        if (x.start(tile + 1) - row != Rows) return stored_panels<Format, Rows - 1>(p, x, tile, first, stop);
    constexpr int kPanels = panels_for(Rows);
    const float* rows = x.data + row * p.depth;
    float* y = p.y + row * p.ldy;
    for (; first + kPanels <= stop; first += kPanels) {
        Panel<Format> panels[kPanels];
        for (int i = 0; i < kPanels; i++) panels[i] = p.panel<Format>(first + i);
        contract_stored<Format, Rows, kPanels>(panels, tiles_of(p.depth), rows, y + first * kLanes, p.ldy,
                                               p.lanes_of(first + kPanels - 1));
    }
    for (; first < stop; first++) {
        const Panel<Format> panel = p.panel<Format>(first);
        contract_stored<Format, Rows, 1>(&panel, tiles_of(p.depth), rows, y + first * kLanes, p.ldy, p.lanes_of(first));
    }
}

// For few rows: their weights are never written as floats.
template <class Format>
void exact_stored(const Problem& p) {
    const PackedRows x(p, kStoredRows);
    const int64_t share = panels_per_item(p.panels(), kMaxPanels);
    parallel_for((p.panels() + share - 1) / share, p.work(), [&](int64_t item) {
        const int64_t start = item * share, stop = std::min(start + share, p.panels());
        for (int64_t first = start; first < stop; first += kMaxPanels)
            for (int64_t tile = 0; tile < x.tiles; tile++)
                stored_panels<Format>(p, x, tile, first, std::min(first + kMaxPanels, stop));
        p.add_bias(start, stop);
    });
}

template <class Format>
void exact(const Problem& p) {
    if constexpr (!Format::is_float)
        if (p.rows <= 3 * kStoredRows && p.depth % kTile == 0) return exact_stored<Format>(p);
    const PackedRows x(p, kMaxRows);
    const int64_t unit = vectors_for(int(std::min<int64_t>(p.rows, kMaxRows)));
    const int64_t share = panels_per_item(p.panels(), unit);
    parallel_for((p.panels() + share - 1) / share, p.work(), [&](int64_t item) {
        const int64_t start = item * share, stop = std::min(start + share, p.panels());
        for (int64_t first = start; first < stop; first += unit)
            exact_panels<Format>(p, x, first, std::min(unit, stop - first));
        p.add_bias(start, stop);
    });
}

// Quantized -------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int kQuantizedRows = 8;
#else
constexpr int kQuantizedRows = 4;
#endif

// 8-bit values per row and tile, with their scale and the sums of their two halves.
struct Activations {
    int64_t tiles;
    int8_t* values;
    float* scales;
    int32_t* sums;

    Activations(const Problem& p) : tiles(tiles_of(p.depth)) {
        values = scratch<int8_t, Use::kActivations>(size_t(p.rows * tiles * kTile));
        scales = scratch<float, Use::kActivations>(size_t(p.rows * tiles));
        sums = scratch<int32_t, Use::kActivations>(size_t(p.rows * tiles * 2));
        parallel_for(p.rows, 8.0 * double(p.rows * p.depth), [&](int64_t row) {
            for (int64_t tile = 0; tile < tiles; tile++) quantize(p.x + row * p.ldx, p.depth, row, tile);
        });
    }

    void quantize(const float* x, int64_t depth, int64_t row, int64_t tile) {
        float source[kTile] = {};
        const int64_t count = std::min<int64_t>(kTile, depth - tile * kTile);
        std::memcpy(source, x + tile * kTile, size_t(count) * sizeof(float));
        const float largest = largest_magnitude(source, kTile);
        const float inverse = largest > 1e-30f ? 127 / largest : 0;
        int8_t* out = values + (row * tiles + tile) * kTile;
        int32_t sum[2] = {0, 0};
        for (int i = 0; i < kTile; i++) {
            out[i] = int8_t(source[i] * inverse + 12582912.f - 12582912.f);  // rounds to the nearest even
            sum[i / (kTile / 2)] += out[i];
        }
        scales[row * tiles + tile] = largest / 127;
        sums[(row * tiles + tile) * 2] = sum[0];
        sums[(row * tiles + tile) * 2 + 1] = sum[1];
    }
};

template <class Format>
inline NativeI dot_words(const int8_t* x, const NativeI* words, int count, NativeI sum) {
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        int32_t bytes;
        std::memcpy(&bytes, x + 4 * i, 4);
        sum = Format::full_bytes ? dot_full(sum, words[i], native_set1(bytes)) : dot(sum, words[i], native_set1(bytes));
    }
    return sum;
}

template <class Format>
inline NativeF add_tile(NativeF total, const Activations& a, int64_t at, const NativeI* words, const TileScale& scale) {
    constexpr int kZero = Format::full_bytes ? kByteOffset : Format::zero;
    const int8_t* x = a.values + at * kTile;
    const int32_t *sums = a.sums + at * 2, sum = sums[0] + sums[1];
    const NativeF step = native_set1(a.scales[at]);
    if constexpr (Format::two_scales) {
        const NativeI first = dot_words<Format>(x, words, 4, native_set1(-kZero * sums[0]));
        const NativeI second = dot_words<Format>(x + 16, words + 4, 4, native_set1(-kZero * sums[1]));
        const NativeF both = native_fma(to_float(first), scale.first, to_float(second) * scale.second);
        return native_fma(both, step, total);
    }
    const NativeI products = dot_words<Format>(x, words, kWords, native_set1(-kZero * sum));
    total = native_fma(to_float(products), scale.first * step, total);
    return Format::has_minimum ? native_fma(scale.minimum, step * float(sum), total) : total;
}

template <class Format, int Rows>
void quantized_tile(const Problem& p, const Activations& a, int64_t row, int64_t panel_index) {
    const Panel<Format> panel = p.panel<Format>(panel_index);
    float result[Rows][kLanes];
    for (int part = 0; part < kParts; part++) {
        NativeF total[Rows] = {};
        for (int64_t tile = 0; tile < a.tiles; tile++) {
            if (row == 0)  // two panels ahead: one is done sooner than memory answers
                prefetch<2>(panel.values + (tile + 2 * a.tiles) * Format::tile_bytes, Format::tile_bytes);
            NativeI words[kWords];
#pragma GCC unroll 8
            for (int i = 0; i < kWords; i++) words[i] = Format::word(panel.values + tile * Format::tile_bytes, i, part);
            const TileScale scale = Format::scale(panel.scales, tile, part);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; r++)
                total[r] = add_tile<Format>(total[r], a, (row + r) * a.tiles + tile, words, scale);
        }
#pragma GCC unroll 8
        for (int r = 0; r < Rows; r++) std::memcpy(result[r] + part * kNativeLanes, &total[r], sizeof total[r]);
    }
    for (int r = 0; r < Rows; r++)
        std::memcpy(p.y + (row + r) * p.ldy + panel_index * kLanes, result[r], size_t(p.lanes_of(panel_index)) * 4);
}

template <class Format, int Rows = kQuantizedRows>
void quantized_rows(const Problem& p, const Activations& a, int64_t row, int64_t panel) {
    for (; row + Rows <= p.rows; row += Rows) quantized_tile<Format, Rows>(p, a, row, panel);
    if constexpr (Rows > 1) quantized_rows<Format, Rows / 2>(p, a, row, panel);
}

template <class Format>
void quantized(const Problem& p) {
    const Activations a(p);
    const int64_t share = panels_per_item(p.panels(), 1);
    parallel_for((p.panels() + share - 1) / share, p.work(), [&](int64_t item) {
        const int64_t start = item * share, stop = std::min(start + share, p.panels());
        for (int64_t panel = start; panel < stop; panel++) quantized_rows<Format>(p, a, 0, panel);
        p.add_bias(start, stop);
    });
}

}  // namespace

// x (rows, depth) with row stride ldx, y (rows, outputs) with row stride ldy; bias (outputs,) or null. Float weights are
// always exact.
VTK_API void vtk_linear(const float* x, int64_t ldx, int64_t rows, int64_t depth, int64_t outputs, int format,
                        const void* values, const void* scales, const float* bias, int quantize, float* y, int64_t ldy) {
    if (rows == 0) return;
    const Problem problem{x, ldx, rows, depth, outputs, values, scales, bias, y, ldy};
    with_format(format, [&](auto tag) {
        using Format = decltype(tag);
        if constexpr (!Format::is_float)
            if (quantize) return quantized<Format>(problem);
        exact<Format>(problem);
    });
}
