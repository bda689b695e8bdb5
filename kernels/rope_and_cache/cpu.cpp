#include <algorithm>
#include <cmath>

#include "pool.h"
#include "simd.h"

using namespace vtk;

namespace {

constexpr int kMaxHeadDim = 256;

struct Store {
    int kv_heads, head_dim, block_size;
    void *keys, *values;
    float *key_scales, *value_scales;

    // key: (head_dim,) to stride block_size; value: (head_dim,) contiguous.
    void put(float* vector, int head, int64_t slot, bool is_key, float*) const {
        put_as(vector, head, slot, is_key, (float*)(is_key ? keys : values), [](float x) { return x; });
    }
    void put(float* vector, int head, int64_t slot, bool is_key, half*) const {
        half converted[kMaxHeadDim];
        for (int d = 0; d < head_dim; d += kLanes) store(converted + d, load(vector + d));
        put_as(converted, head, slot, is_key, (half*)(is_key ? keys : values), [](half x) { return x; });
    }
    void put(float* vector, int head, int64_t slot, bool is_key, int8_t*) const {
        const float largest = largest_magnitude(vector, head_dim);
        const float inverse = largest > 1e-30f ? 127 / largest : 0;
        const int64_t block = slot / block_size * kv_heads + head;
        (is_key ? key_scales : value_scales)[block * block_size + slot % block_size] = largest / 127;
        const auto round = [inverse](float x) { return int8_t(x * inverse + 12582912.f - 12582912.f); };
        put_as(vector, head, slot, is_key, (int8_t*)(is_key ? keys : values), round);
    }

    // A key lies in as many cache lines as it has values. In a block that was not written just now all of them would
    // be waited for, one after the other.
    template <class T>
    void fetch_keys(int64_t slot) const {
        const T* block = (const T*)keys + slot / block_size * kv_heads * head_dim * block_size + slot % block_size;
        for (int d = 0; d < kv_heads * head_dim; d++) prefetch<2>(block + int64_t(d) * block_size, 1);
    }

    template <class S, class T, class Convert>
    void put_as(const S* vector, int head, int64_t slot, bool is_key, T* cache, Convert convert) const {
        const int64_t block = slot / block_size * kv_heads + head, offset = slot % block_size;
        const int64_t stride = is_key ? block_size : 1;
        T* target = cache + block * head_dim * block_size + (is_key ? offset : offset * head_dim);
        for (int d = 0; d < head_dim; d++) target[d * stride] = convert(vector[d]);
    }
};

void normalize(float* x, const float* weight, float eps, int head_dim) {
    V squares = set1(0);
    int d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) squares = fma(load(x + d), load(x + d), squares);
    if (d < head_dim) {
        const V rest = load_first(x + d, head_dim - d);
        squares = fma(rest, rest, squares);
    }
    const float factor = 1 / std::sqrt(sum_lanes(squares) / float(head_dim) + eps);
    for (d = 0; d < head_dim; d++) x[d] = x[d] * factor * weight[d];
}

void rotate(float* x, const float* cos, const float* sin, int half_dim) {
    for (int i = 0; i < half_dim; i++) {
        const float first = x[i], second = x[i + half_dim];
        x[i] = first * cos[i] - second * sin[i];
        x[i + half_dim] = second * cos[i] + first * sin[i];
    }
}

struct Rope {
    float* query;
    int64_t query_stride;
    float* key;
    int64_t key_stride;
    const float* value;
    int64_t value_stride;
    int heads;
    const float *cos, *sin;
    int half_dim;
    const float *query_norm, *key_norm;
    float eps;

    template <class T>
    void row(int64_t t, int64_t position, int64_t slot, bool is_new_place, const Store& store) const {
        const float *row_cos = cos + position * half_dim, *row_sin = sin + position * half_dim;
        const int dim = store.head_dim;
        if (slot >= 0 && is_new_place) store.fetch_keys<T>(slot);
        for (int h = 0; h < heads; h++) {
            float* vector = query + t * query_stride + h * dim;
            if (query_norm) normalize(vector, query_norm, eps, dim);
            rotate(vector, row_cos, row_sin, half_dim);
        }
        for (int h = 0; h < store.kv_heads; h++) {
            float* vector = key + t * key_stride + h * dim;
            if (key_norm) normalize(vector, key_norm, eps, dim);
            rotate(vector, row_cos, row_sin, half_dim);
            if (slot < 0) continue;
            float copy[kMaxHeadDim] = {};
            std::copy_n(vector, dim, copy);
            store.put(copy, h, slot, true, (T*)nullptr);
            std::copy_n(value + t * value_stride + h * dim, dim, copy);
            store.put(copy, h, slot, false, (T*)nullptr);
        }
    }
};

}  // namespace

// Rows have strides; kv_dtype as in paged_attention.
VTK_API void vtk_rope_and_cache(float* query, int64_t query_stride, float* key, int64_t key_stride, const float* value,
                                int64_t value_stride, int64_t rows, int heads, const float* cos, const float* sin,
                                int half_dim, const int64_t* positions, const int64_t* slots, const float* query_norm,
                                const float* key_norm, float eps, int kv_heads, int head_dim, int block_size,
                                int kv_dtype, void* keys, void* values, float* key_scales, float* value_scales) {
    const Rope rope{query, query_stride, key, key_stride, value, value_stride, heads,
                    cos,   sin,          half_dim, query_norm, key_norm, eps};
    const Store store{kv_heads, head_dim, block_size, keys, values, key_scales, value_scales};
    parallel_for(rows, 8.0 * double(rows * (heads + 2 * kv_heads) * head_dim), [&](int64_t t) {
        const bool is_new_place = t == 0 || slots[t - 1] != slots[t] - 1;
        if (kv_dtype == 0) rope.row<float>(t, positions[t], slots[t], is_new_place, store);
        if (kv_dtype == 1) rope.row<half>(t, positions[t], slots[t], is_new_place, store);
        if (kv_dtype == 2) rope.row<int8_t>(t, positions[t], slots[t], is_new_place, store);
    });
}
