#include <algorithm>
#include <cmath>
#include <vector>

#include "contract.h"
#include "pool.h"

using namespace vtk;

namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kSpans = 8;                    // runs of 16 keys that one step of the online softmax takes
constexpr int kKeys = kSpans * kLanes;

struct Attention {
    const float* query;
    int64_t query_stride;
    int heads, kv_heads, head_dim, block_size;
    const void *keys, *values;
    const float *key_scales, *value_scales;
    int64_t sequences;
    const int32_t *cu_seqlens, *seq_lens, *block_tables;
    int64_t table_stride;
    float scale;
    float* out;

    int group() const { return heads / kv_heads; }
    int64_t new_rows(int64_t sequence) const { return cu_seqlens[sequence + 1] - cu_seqlens[sequence]; }
    // Query vectors of one KV head: pair p is head p % group() of row p / group().
    int64_t tiles(int64_t sequence) const { return (new_rows(sequence) * group() + kMaxRows - 1) / kMaxRows; }
};

// Up to 16 keys and values of one KV head from position `start` on, where a block holds them or copied together.
template <class T>
struct Span {
    const T *keys, *values;
    float key_scales[kLanes], value_scales[kLanes];
};

template <class T>
struct SpanReader {
    const Attention& a;
    int64_t sequence;
    int kv_head, width;
    bool in_place;
    int64_t key_stride, value_stride;
    std::vector<T> key_copy, value_copy;

    SpanReader(const Attention& attention, int64_t sequence_, int head)
        : a(attention), sequence(sequence_), kv_head(head),
          width((a.head_dim + kLanes - 1) / kLanes * kLanes),
          in_place(a.block_size % kLanes == 0 && a.head_dim % kLanes == 0),
          key_stride(in_place ? a.block_size : kLanes), value_stride(in_place ? a.head_dim : width) {
        if (in_place) return;
        key_copy.resize(size_t(kSpans * a.head_dim * kLanes));
        value_copy.resize(size_t(kSpans * kLanes * width));
    }

    int64_t head_block(int64_t of, int head, int64_t position) const {
        return int64_t(a.block_tables[of * a.table_stride + position / a.block_size]) * a.kv_heads + head;
    }
    const T* key(int64_t of, int head, int64_t position) const {
        return (const T*)a.keys + head_block(of, head, position) * a.head_dim * a.block_size + position % a.block_size;
    }
    const T* key(int64_t position) const { return key(sequence, kv_head, position); }
    int64_t slot(int64_t position) const {
        return head_block(sequence, kv_head, position) * a.block_size + position % a.block_size;
    }
    const T* value(int64_t position) const { return (const T*)a.values + slot(position) * a.head_dim; }

    void read(int64_t start, int count, int index, Span<T>& span) {
        if (in_place) {
            span.keys = key(start);
            span.values = value(start);
        } else {
            copy(start, count, index, span);
        }
        if constexpr (std::is_same_v<T, int8_t>)
            for (int i = 0; i < count; i++) {
                span.key_scales[i] = a.key_scales[slot(start + i)];
                span.value_scales[i] = a.value_scales[slot(start + i)];
            }
    }

    // Where the keys are that are read after those of `start`, from their span s on; they may be the next head's or the
    // next sequence's.
    const T* keys_after(int64_t start, int s, int64_t stop) const {
        const int64_t position = start + kKeys + s * kLanes, again = s * kLanes;
        if (!in_place) return nullptr;
        if (position < stop) return key(position);
        if (kv_head + 1 < a.kv_heads) return again < stop ? key(sequence, kv_head + 1, again) : nullptr;
        if (sequence + 1 == a.sequences || again >= a.seq_lens[sequence + 1]) return nullptr;
        return key(sequence + 1, 0, again);
    }

    void copy(int64_t start, int count, int index, Span<T>& span) {
        T* keys = key_copy.data() + index * a.head_dim * kLanes;
        T* values = value_copy.data() + index * kLanes * width;
        for (int i = 0; i < count; i++) {
            const T* source = key(start + i);
            for (int d = 0; d < a.head_dim; d++) keys[d * kLanes + i] = source[int64_t(d) * a.block_size];
            std::memcpy(values + i * width, value(start + i), size_t(a.head_dim) * sizeof(T));
        }
        span.keys = keys;
        span.values = values;
    }
};

// One tile of query vectors of one sequence and KV head, with the state of its online softmax.
template <class T>
struct QueryTile {
    const Attention& a;
    int64_t sequence, first_pair;
    int kv_head, rows, width;
    float query[kMaxHeadDim * kMaxRows];  // packed by depth, scaled
    float scores[kMaxRows * kKeys];
    float total[kMaxRows * kMaxHeadDim];
    float largest[kMaxRows], weight[kMaxRows];

    QueryTile(const Attention& attention, int64_t sequence_, int kv_head_, int64_t tile)
        : a(attention), sequence(sequence_), first_pair(tile * kMaxRows), kv_head(kv_head_) {
        rows = int(std::min<int64_t>(kMaxRows, a.new_rows(sequence) * a.group() - first_pair));
        width = (a.head_dim + kLanes - 1) / kLanes * kLanes;
        for (int r = 0; r < rows; r++) {
            const float* source = a.query + row_of(r) * a.query_stride + head_of(r) * a.head_dim;
            for (int d = 0; d < a.head_dim; d++) query[d * rows + r] = source[d] * a.scale;
            largest[r] = -INFINITY;
            weight[r] = 0;
            std::fill_n(total + r * width, width, 0.f);
        }
    }

    int64_t row_of(int r) const { return a.cu_seqlens[sequence] + (first_pair + r) / a.group(); }
    int head_of(int r) const { return kv_head * a.group() + int((first_pair + r) % a.group()); }
    int64_t limit(int r) const { return a.seq_lens[sequence] - a.cu_seqlens[sequence + 1] + row_of(r) + 1; }
    int visible(int r, int64_t start) const { return int(std::clamp<int64_t>(limit(r) - start, 0, kKeys)); }

    void run() {
        SpanReader<T> reader(a, sequence, kv_head);
        for (int64_t start = 0; start < limit(rows - 1); start += kKeys) {
            Span<T> spans[kSpans];
            const int keys = visible(rows - 1, start), count = (keys + kLanes - 1) / kLanes;
            for (int s = 0; s < count; s++)
                reader.read(start + s * kLanes, std::min(kLanes, keys - s * kLanes), s, spans[s]);
            score(reader, spans, count);
            const T* next[kSpans];
            for (int s = 0; s < count; s++) next[s] = reader.keys_after(start, s, limit(rows - 1));
            for (int r = 0; r < rows; r++)
                if (const int n = visible(r, start)) soften(r, n, spans, next);
            add_values(reader, spans, start, count, next);
        }
        write();
    }

    void score(const SpanReader<T>& reader, const Span<T>* spans, int count) {
        const T *keys[kSpans], *values[kSpans];
        for (int s = 0; s < count; s++) {
            keys[s] = spans[s].keys;
            values[s] = spans[s].values;
        }
        const Columns<T, true> b{keys, count, reader.key_stride, values};
        contract_tile(rows, query, b, a.head_dim, scores, kKeys, false);
    }

    // Scores of one row to weights, relative to the largest score so far. Where few rows are as fast as memory, it does
    // not idle meanwhile.
    void soften(int r, int n, const Span<T>* spans, const T* const* next) {
        float* row = scores + r * kKeys;
        const int count = (n + kLanes - 1) / kLanes;
        V top = set1(-INFINITY);
        V value[kSpans];
        for (int s = 0; s < count; s++) {
            value[s] = load(row + s * kLanes);
            if constexpr (std::is_same_v<T, int8_t>) value[s] = value[s] * load(spans[s].key_scales);
            if (n < (s + 1) * kLanes) value[s] = keep_first(value[s], n - s * kLanes, -INFINITY);
            top = max(value[s], top);
        }
        const float now = std::max(largest[r], max_lanes(top));
        const V base = set1(now == -INFINITY ? 0 : now);  // nothing seen yet weighs anything
        V sum = set1(0);
        for (int s = 0; s < count; s++) {
            if (rows <= 4) prefetch<2>(next[s] + r * 4 * kLanes, 4 * kLanes * int64_t(sizeof(T)));
            V e = exp_to_zero(value[s] - base);
            sum = sum + e;
            if constexpr (std::is_same_v<T, int8_t>) e = e * load(spans[s].value_scales);
            store(row + s * kLanes, e);
        }
        if (now != largest[r]) rescale(r, now);
        weight[r] += sum_lanes(sum);
    }

    void rescale(int r, float now) {
        const V factor = exp_to_zero(set1(largest[r] - now));
        for (int d = 0; d < width; d += kLanes) store(total + r * width + d, load(total + r * width + d) * factor);
        weight[r] *= first_lane(factor);
        largest[r] = now;
    }

    // Rows that see equally many keys go together; no row ever reads a value that it does not see.
    void add_values(const SpanReader<T>& reader, const Span<T>* spans, int64_t start, int spans_used,
                    const T* const* next) {
        const T* values[kSpans];
        for (int s = 0; s < spans_used; s++) values[s] = spans[s].values;
        const Runs<T> b{values, width / kLanes, reader.value_stride, next, reader.key_stride};
        for (int r = 0; r < rows;) {
            const int n = visible(r, start);
            int count = 1;
            while (r + count < rows && visible(r + count, start) == n) count++;
            if (n) contract_runs<kKeys>(count, scores + r * kKeys, b, n, total + r * width, width);
            r += count;
        }
    }

    void write() const {
        for (int r = 0; r < rows; r++) {
            float* target = a.out + (row_of(r) * a.heads + head_of(r)) * a.head_dim;
            for (int d = 0; d < a.head_dim; d++) target[d] = total[r * width + d] / weight[r];
        }
    }
};

template <class T>
void attend(const Attention& a) {
    thread_local std::vector<int64_t> buffer;
    std::vector<int64_t>& starts = buffer;  // a worker must not see its own
    starts.assign(1, 0);
    double work = 0;
    for (int64_t i = 0; i < a.sequences; i++) {
        starts.push_back(starts.back() + a.tiles(i) * a.kv_heads);
        work += 2.0 * double(a.new_rows(i)) * a.heads * a.head_dim * a.seq_lens[i];
    }
    parallel_for(starts.back(), work, [&](int64_t item) {
        const int64_t i = std::upper_bound(starts.begin(), starts.end(), item) - starts.begin() - 1;
        const int64_t within = item - starts[size_t(i)];
        QueryTile<T>(a, i, int(within / a.tiles(i)), within % a.tiles(i)).run();
    });
}

}  // namespace

// kv_dtype: 0 float, 1 half, 2 int8 with scales. head_dim <= 256. query rows have a stride; out is (rows, heads, head_dim).
VTK_API void vtk_paged_attention(const float* query, int64_t query_stride, int heads, int kv_heads, int head_dim,
                                 int block_size, int kv_dtype, const void* keys, const void* values,
                                 const float* key_scales, const float* value_scales, int64_t sequences,
                                 const int32_t* cu_seqlens, const int32_t* seq_lens, const int32_t* block_tables,
                                 int64_t table_stride, float scale, float* out) {
    const Attention a{query,      query_stride, heads,     kv_heads,   head_dim, block_size,   keys,         values,
                      key_scales, value_scales, sequences, cu_seqlens, seq_lens, block_tables, table_stride, scale,
                      out};
    if (kv_dtype == 0) attend<float>(a);
    if (kv_dtype == 1) attend<half>(a);
    if (kv_dtype == 2) attend<int8_t>(a);
}
