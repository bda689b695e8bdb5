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

// c[r * ldc + 16 v + lane] (+)= sum over k of x[r, k] * b[v][k * ldb + lane].
//
// Each output is one chain of multiply-adds in ascending k, whatever the tile: its bits depend on its row and column
// only. `last` is the number of lanes of the last vector that exist in c.
template <int Rows, int Vectors, class X, class T>
void contract(const float* x, const T* const* b, int64_t ldb, int64_t depth, float* c, int64_t ldc, bool add, int last) {
    V sum[Rows][Vectors];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
            const float* source = c + r * ldc + v * kLanes;
            sum[r][v] = !add ? set1(0) : v + 1 < Vectors || last == kLanes ? load(source) : load_first(source, last);
        }
    const T* column[Vectors];
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; v++) column[v] = b[v];
    for (int64_t k = 0; k < depth; k++) {
        V weight[Vectors];
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
            weight[v] = load(column[v]);
            column[v] += ldb;
        }
#pragma GCC unroll 16
        for (int r = 0; r < Rows; r++) {
            const V value = set1(x[r * X::row]);
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; v++) sum[r][v] = fma(value, weight[v], sum[r][v]);
        }
        x += X::depth;
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; v++) {
            float* target = c + r * ldc + v * kLanes;
            if (v + 1 < Vectors || last == kLanes)
                store(target, sum[r][v]);
            else
                store_first(target, sum[r][v], last);
        }
}

template <int Rows, template <int> class Layout, int Width, class T>
void contract_columns(const float* x, const T* const* b, int vectors, int64_t ldb, int64_t depth, float* c, int64_t ldc,
                      bool add, int last) {
    using X = Layout<Width ? Width : Rows>;
    constexpr int kVectors = vectors_for(Rows);
    int v = 0;
    for (; v + kVectors <= vectors; v += kVectors)
        contract<Rows, kVectors, X>(x, b + v, ldb, depth, c + v * kLanes, ldc, add, v + kVectors == vectors ? last : kLanes);
    for (; v < vectors; v++)
        contract<Rows, 1, X>(x, b + v, ldb, depth, c + v * kLanes, ldc, add, v + 1 == vectors ? last : kLanes);
}

// `contract` over `rows` <= kMaxRows rows and any number of vectors; Width 0 is a left side packed by depth.
template <template <int> class Layout, int Width, class T, int Rows = kMaxRows>
void contract_tile(int rows, const float* x, const T* const* b, int vectors, int64_t ldb, int64_t depth, float* c,
                   int64_t ldc, bool add, int last = kLanes) {
    if (rows == Rows)
        contract_columns<Rows, Layout, Width>(x, b, vectors, ldb, depth, c, ldc, add, last);
    else if constexpr (Rows > 1)
        contract_tile<Layout, Width, T, Rows - 1>(rows, x, b, vectors, ldb, depth, c, ldc, add, last);
}

}  // namespace vtk
