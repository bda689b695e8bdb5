// The one inner loop of matrix products and attention: a few rows times a few columns of 16 outputs.
#pragma once

#include "simd.h"

namespace vtk {

// Register tiles: rows, and vectors of 16 outputs beside each other for so many rows.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;
constexpr int vectors_for(int rows) { return rows <= 6 ? 4 : 2; }
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;
constexpr int vectors_for(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#else
constexpr int kMaxRows = 3;
constexpr int vectors_for(int rows) { return rows == 1 ? 2 : 1; }
#endif

// Where row r, depth k of the left side is: packed by depth, or rows of a fixed width.
template <int Rows>
struct Packed {
    static constexpr int row = 1, depth = Rows;
};
template <int Width>
struct RowMajor {
    static constexpr int row = Width, depth = 1;
};

// The right side: value (k, v, lane) is at[k / run * vectors + v][k % run * ld + lane]. What `ahead` points to is needed
// next: of each of its pointers, as many values are fetched into the second-level cache as are read of that in `at`.
template <class T>
struct Columns {
    const T* const* at;
    int vectors;
    int64_t ld, run;
    const T* const* ahead = nullptr;
};

// c[r * ldc + 16 v + lane] (+)= sum over k < depth of x[r, k] * b(k, first + v, lane).
//
// Each output is one chain of multiply-adds in ascending k, whatever the tile: its bits depend on its row and column
// only. `last` is the number of lanes of the last vector that exist in c.
template <int Rows, int Vectors, class X, class T>
void contract(const float* x, const Columns<T>& b, int first, int64_t depth, float* c, int64_t ldc, bool add, int last) {
    constexpr int kColumns = Vectors * kParts;  // in registers: plain arrays of native vectors, or compilers spill them
    NativeF sum[Rows][kColumns];
    float edge[Rows][kLanes];  // the last vector of each row, where c has not all of its lanes
    const bool whole = last == kLanes;
    if (add && !whole)
        for (int r = 0; r < Rows; r++)
            std::memcpy(edge[r], c + r * ldc + (Vectors - 1) * kLanes, size_t(last) * sizeof(float));
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 16
        for (int i = 0; i < kColumns; i++) {
            const bool at_edge = !whole && i / kParts == Vectors - 1;
            const float* source = at_edge ? edge[r] + i % kParts * kNativeLanes : c + r * ldc + i * kNativeLanes;
            sum[r][i] = add ? native_load(source) : NativeF{};
        }
    for (int64_t start = 0, from = first; start < depth; start += b.run, from += b.vectors) {
        const int64_t count = depth - start < b.run ? depth - start : b.run;
        const T *column[Vectors], *ahead[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
            column[v] = b.at[from + v];
            ahead[v] = b.ahead ? b.ahead[from + v] : nullptr;
        }
        for (int64_t k = 0; k < count; k++) {
            NativeF weight[kColumns];
#pragma GCC unroll 16
            for (int i = 0; i < kColumns; i++) weight[i] = native_load(column[i / kParts] + i % kParts * kNativeLanes);
            if (b.ahead)
#pragma GCC unroll 4
                for (int v = 0; v < Vectors; v++) prefetch<2>(ahead[v] + k * kLanes, 1);
#pragma GCC unroll 16
            for (int r = 0; r < Rows; r++) {
                const NativeF value = native_set1(x[r * X::row]);
#pragma GCC unroll 16
                for (int i = 0; i < kColumns; i++) sum[r][i] = native_fma(value, weight[i], sum[r][i]);
            }
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; v++) column[v] += b.ld;
            x += X::depth;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 16
        for (int i = 0; i < kColumns; i++) {
            const bool at_edge = !whole && i / kParts == Vectors - 1;
            float* target = at_edge ? edge[r] + i % kParts * kNativeLanes : c + r * ldc + i * kNativeLanes;
            std::memcpy(target, &sum[r][i], sizeof sum[r][i]);
        }
    if (!whole)
        for (int r = 0; r < Rows; r++)
            std::memcpy(c + r * ldc + (Vectors - 1) * kLanes, edge[r], size_t(last) * sizeof(float));
}

template <int Rows, template <int> class Layout, int Width, class T>
void contract_columns(const float* x, const Columns<T>& b, int64_t depth, float* c, int64_t ldc, bool add, int last) {
    using X = Layout<Width ? Width : Rows>;
    constexpr int kVectors = vectors_for(Rows);
    int v = 0;
    for (; v + kVectors <= b.vectors; v += kVectors)
        contract<Rows, kVectors, X>(x, b, v, depth, c + v * kLanes, ldc, add, v + kVectors == b.vectors ? last : kLanes);
    for (; v < b.vectors; v++)
        contract<Rows, 1, X>(x, b, v, depth, c + v * kLanes, ldc, add, v + 1 == b.vectors ? last : kLanes);
}

// `contract` over `rows` <= kMaxRows rows and all vectors; Width 0 is a left side packed by depth.
template <template <int> class Layout, int Width, class T, int Rows = kMaxRows>
void contract_tile(int rows, const float* x, const Columns<T>& b, int64_t depth, float* c, int64_t ldc, bool add,
                   int last = kLanes) {
    if (rows == Rows)
        contract_columns<Rows, Layout, Width>(x, b, depth, c, ldc, add, last);
    else if constexpr (Rows > 1)
        contract_tile<Layout, Width, T, Rows - 1>(rows, x, b, depth, c, ldc, add, last);
}

}  // namespace vtk
