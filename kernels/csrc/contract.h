// The one inner loop of matrix products and attention: a few rows times a few columns of 16 outputs.
#pragma once

#include "simd.h"

namespace vtk {

// Register tiles: rows, and vectors of 16 outputs beside each other for so many rows.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;
constexpr int vectors_for(int rows) { return rows <= 3 ? 8 : rows <= 6 ? 4 : 2; }
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

// The right side in columns: value (k, v, lane) is at[v][k * ld + lane]. Fetching: while they are read, what `ahead`
// points to is fetched, of each pointer as many values as are read of that in `at`.
template <class T, bool Fetching = false>
struct Columns {
    const T* const* at;
    int vectors;
    int64_t ld;
    const T* const* ahead = nullptr;

    static constexpr bool fetching = Fetching;
    static constexpr int64_t steps(int64_t depth) { return depth; }
    static constexpr int64_t runs(int64_t, int64_t) { return 1; }

    template <int Vectors>
    struct Reader {  // pointers of its own, or compilers load them anew for each value
        const T *columns[Vectors], *following[Vectors];
        int64_t ld;

        Reader(const Columns& b, int first) : ld(b.ld) {
            for (int v = 0; v < Vectors; v++) {
                columns[v] = b.at[first + v];
                following[v] = Fetching ? b.ahead[first + v] : nullptr;
            }
        }
        const T* value(int64_t, int64_t k, int v) const { return columns[v] + k * ld; }
        const T* next(int64_t, int64_t k, int v) const { return following[v] + k * kLanes; }
    };
};

// The right side in runs of 16 rows: value (16 run + k, v, lane) is at[run][k * ld + 16 v + lane]. The runs take turns,
// k by k: memory answers sooner where it is asked at several places.
template <class T>
struct Runs {
    const T* const* at;
    int vectors;
    int64_t ld;
    const T* const* ahead;  // fetched meanwhile: as many values, 16 every `ahead_step`
    int64_t ahead_step;

    static constexpr bool fetching = true;
    static constexpr int64_t steps(int64_t depth) { return depth < kLanes ? depth : kLanes; }
    static constexpr int64_t runs(int64_t depth, int64_t k) { return (depth - k + kLanes - 1) / kLanes; }

    template <int Vectors>
    struct Reader {
        const Runs& b;
        int first;

        Reader(const Runs& runs, int vector) : b(runs), first(vector) {}
        const T* value(int64_t run, int64_t k, int v) const { return b.at[run] + k * b.ld + (first + v) * kLanes; }
        const T* next(int64_t run, int64_t k, int v) const {
            return b.ahead[run] + (k * b.vectors + first + v) * b.ahead_step;
        }
    };
};

// c[r * ldc + 16 v + lane] (+)= sum over k < depth of x[r, k] * b(k, first + v, lane).
//
// Each output is one chain of multiply-adds in an order of k that only the kind of the right side gives, whatever the
// tile: its bits depend on its row and column only. `last` is the number of lanes of the last vector that exist in c.
template <int Rows, int Vectors, class X, class B>
void contract(const float* x, const B& b, int first, int64_t depth, float* c, int64_t ldc, bool add, int last) {
    constexpr int kColumns = Vectors * kParts;  // in registers: plain arrays of native vectors, or compilers spill them
    constexpr int kGroup = kColumns > 4 ? 4 : kColumns;  // of them, whose weights are in registers at once
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
    const typename B::template Reader<Vectors> right(b, first);
    for (int64_t k = 0; k < b.steps(depth); k++)
        for (int64_t run = 0; run < b.runs(depth, k); run++) {
            if constexpr (B::fetching)
#pragma GCC unroll 8
                for (int v = 0; v < Vectors; v++) prefetch<2>(right.next(run, k, v), 1);
            const float* left = x + (run * kLanes + k) * X::depth;
#pragma GCC unroll 4
            for (int start = 0; start < kColumns; start += kGroup) {
                NativeF weight[kGroup];
#pragma GCC unroll 16
                for (int i = 0; i < kGroup; i++)
                    weight[i] = native_load(right.value(run, k, (start + i) / kParts) +
                                            (start + i) % kParts * kNativeLanes);
#pragma GCC unroll 16
                for (int r = 0; r < Rows; r++) {
                    const NativeF value = native_set1(left[r * X::row]);
#pragma GCC unroll 16
                    for (int i = 0; i < kGroup; i++)
                        sum[r][start + i] = native_fma(value, weight[i], sum[r][start + i]);
                }
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

template <int Rows, int Vectors, class X, class B>
void contract_columns(const float* x, const B& b, int v, int64_t depth, float* c, int64_t ldc, bool add, int last) {
    for (; v + Vectors <= b.vectors; v += Vectors)
        contract<Rows, Vectors, X>(x, b, v, depth, c + v * kLanes, ldc, add, v + Vectors == b.vectors ? last : kLanes);
    if constexpr (Vectors > 1)
        if (v < b.vectors) contract_columns<Rows, Vectors / 2, X>(x, b, v, depth, c, ldc, add, last);
}

// `contract` over `rows` <= kMaxRows rows and all vectors of columns, with the left side packed by depth.
template <class B, int Rows = kMaxRows>
void contract_tile(int rows, const float* x, const B& b, int64_t depth, float* c, int64_t ldc, bool add,
                   int last = kLanes) {
    if (rows == Rows)
        contract_columns<Rows, vectors_for(Rows), Packed<Rows>>(x, b, 0, depth, c, ldc, add, last);
    else if constexpr (Rows > 1)
        contract_tile<B, Rows - 1>(rows, x, b, depth, c, ldc, add, last);
}

// The same of runs, with rows of `Width` values on the left side; added to c.
template <int Width, class T, int Rows = kMaxRows>
void contract_runs(int rows, const float* x, const Runs<T>& b, int64_t depth, float* c, int64_t ldc) {
    constexpr int kVectors = vectors_for(Rows) < 2 ? 1 : 2;
    if (rows == Rows)
        contract_columns<Rows, kVectors, RowMajor<Width>>(x, b, 0, depth, c, ldc, true, kLanes);
    else if constexpr (Rows > 1)
        contract_runs<Width, T, Rows - 1>(rows, x, b, depth, c, ldc);
}

}  // namespace vtk
