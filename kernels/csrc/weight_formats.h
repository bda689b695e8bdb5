// Packed weights: panels of 16 outputs, lane = output, so that both modes of `linear` run along the outputs.
//
// Float panels are [k][lane]. The others are tiles of 32 values of k: `values` holds 32-bit words [word][lane] whose bytes
// are four consecutive k, `scales` what the tile's values are multiplied with. The bits of every value are the file's.
#pragma once

#include "simd.h"

namespace vtk {

constexpr int kTile = 32;
constexpr int kWords = kTile / 4;

// A tile's value is `first * bits + minimum` in its first 16 k, `second * bits + minimum` in the others.
struct TileScale {
    NativeF first, second, minimum;
};

inline NativeI load_word(const uint8_t* words, int word, int part) {
    return load_bits<NativeI>(words + (word * kLanes + part * kNativeLanes) * 4);
}

inline NativeI nibble_word(const uint8_t* tile, int word, int part) {
    return (load_word(tile, word % 4, part) >> (word / 4 * 4)) & 0x0f0f0f0f;
}

template <class T>
struct FloatFormat {
    using Element = T;
    static constexpr bool is_float = true;
};

// Bytes are stored with their top bit flipped, that is 128 above the value.
struct ByteFormat {
    static constexpr bool is_float = false, has_minimum = false, full_bytes = true, two_scales = false,
                          is_nibble = false;
    static constexpr int zero = 128, tile_bytes = 512;
    static NativeI word(const uint8_t* tile, int word, int part) { return load_word(tile, word, part); }
};

struct Int8Rows : ByteFormat {
    static int64_t scale_bytes(int64_t) { return kLanes * 4; }
    static TileScale scale(const uint8_t* scales, int64_t, int part) {
        const NativeF d = native_load((const float*)scales + part * kNativeLanes);
        return {d, d, NativeF{}};
    }
};

struct Q8_0 : ByteFormat {
    static int64_t scale_bytes(int64_t tiles) { return tiles * kLanes * 2; }
    static TileScale scale(const uint8_t* scales, int64_t tile, int part) {
        const NativeF d = native_load((const half*)scales + tile * kLanes + part * kNativeLanes);
        return {d, d, NativeF{}};
    }
};

struct NibbleFormat {
    static constexpr bool is_float = false, full_bytes = false, two_scales = false, is_nibble = true;
    static constexpr int tile_bytes = 256;
    static NativeI word(const uint8_t* tile, int word, int part) { return nibble_word(tile, word, part); }
};

struct Q4_0 : NibbleFormat {
    static constexpr bool has_minimum = false;
    static constexpr int zero = 8;
    static int64_t scale_bytes(int64_t tiles) { return tiles * kLanes * 2; }
    static TileScale scale(const uint8_t* scales, int64_t tile, int part) { return Q8_0::scale(scales, tile, part); }
};

struct Q4_1 : NibbleFormat {
    static constexpr bool has_minimum = true;
    static constexpr int zero = 0;
    static int64_t scale_bytes(int64_t tiles) { return tiles * kLanes * 4; }
    static TileScale scale(const uint8_t* scales, int64_t tile, int part) {
        const half* p = (const half*)scales + tile * 2 * kLanes + part * kNativeLanes;
        const NativeF d = native_load(p);
        return {d, d, native_load(p + kLanes)};
    }
};

// Per 8 tiles: half d[16], half dmin[16], then per tile uint8 scale[16], uint8 minimum[16].
struct Q4_K : NibbleFormat {
    static constexpr bool has_minimum = true;
    static constexpr int zero = 0;
    static constexpr int64_t group_bytes = 4 * kLanes + 8 * 2 * kLanes;
    static int64_t scale_bytes(int64_t tiles) { return tiles / 8 * group_bytes; }
    static TileScale scale(const uint8_t* scales, int64_t tile, int part) {
        const uint8_t* group = scales + tile / 8 * group_bytes;
        const half* super = (const half*)group + part * kNativeLanes;
        const uint8_t* sub = group + 4 * kLanes + tile % 8 * 2 * kLanes + part * kNativeLanes;
        const NativeF d = native_load(super) * native_load(sub);
        return {d, d, -(native_load(super + kLanes) * native_load(sub + kLanes))};
    }
};

// values: 4 words of low nibbles as above, then 2 words whose byte j holds the upper two bits of k = 4 i + j for the
// four words i of each half. scales, per 8 tiles: half d[16], then per tile int8 scale[2][16].
struct Q6_K {
    static constexpr bool is_float = false, has_minimum = false, full_bytes = false, two_scales = true,
                          is_nibble = false;
    static constexpr int zero = 32, tile_bytes = 384;
    static constexpr int64_t group_bytes = 2 * kLanes + 8 * 2 * kLanes;
    static int64_t scale_bytes(int64_t tiles) { return tiles / 8 * group_bytes; }
    static NativeI word(const uint8_t* tile, int word, int part) {
        const NativeI upper = load_word(tile, 4 + word / 4, part) >> (word % 4 * 2);
        return nibble_word(tile, word, part) | (upper & 0x03030303) << 4;
    }
    static TileScale scale(const uint8_t* scales, int64_t tile, int part) {
        const uint8_t* group = scales + tile / 8 * group_bytes;
        const NativeF d = native_load((const half*)group + part * kNativeLanes);
        const int8_t* sub = (const int8_t*)group + 2 * kLanes + tile % 8 * 2 * kLanes + part * kNativeLanes;
        return {d * native_load(sub), d * native_load(sub + kLanes), NativeF{}};
    }
};

// What turns the bits of one half of a tile into floats; with one rounding where there are fused multiply-adds.
template <class Format>
inline NativeF base_of(const TileScale& scale, int half) {
    return Format::has_minimum ? scale.minimum : (half ? scale.second : scale.first) * float(-Format::zero);
}
template <class Format>
inline NativeF dequantize(NativeF bits, NativeF scale, NativeF base) {
    return kHasFma || Format::has_minimum ? native_fma(scale, bits, base) : scale * (bits - float(Format::zero));
}

// The bits of position 4 * word + byte of one part of a tile, as a number.
template <class Format>
inline NativeF bits_of(const uint8_t* tile, int word, int byte, int part) {
#if defined(__AVX512F__)
    if constexpr (Format::is_nibble) {  // a look-up reads the lowest four bits of each lane: nothing to mask or convert
        const NativeF number = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const NativeI lowest = load_word(tile, word % 4, part) >> (word / 4 * 4 + 8 * byte);
        return _mm512_permutexvar_ps((__m512i)lowest, number);
    }
#endif
#if defined(__AVX512BW__)
    if constexpr (Format::full_bytes) {  // in one instruction the byte to the lowest place, and zeros above it
        const NativeI first = {0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12};
        const NativeI places = (first + byte) | int32_t(0x80808000);
        return to_float((NativeI)_mm512_shuffle_epi8((__m512i)Format::word(tile, word, part), (__m512i)places));
    }
#endif
    typedef uint32_t Bits __attribute__((vector_size(4 * kNativeLanes)));
    return to_float((NativeI)(((Bits)Format::word(tile, word, part) >> (8 * byte)) & 255u));
}

// One part of a tile's float32 values: out[k][lane].
template <class Format>
void dequantize_part(const uint8_t* tile, TileScale scale, int part, float* out) {
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i++) {
        const int half = i / (kWords / 2);
        const NativeF step = half ? scale.second : scale.first, base = base_of<Format>(scale, half);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const NativeF value = dequantize<Format>(bits_of<Format>(tile, i, j, part), step, base);
            std::memcpy(out + (4 * i + j) * kLanes + part * kNativeLanes, &value, sizeof value);
        }
    }
}

// `tiles` tiles from `first` on.
template <class Format>
void dequantize_tiles(const uint8_t* values, const uint8_t* scales, int64_t first, int64_t tiles, float* out) {
    for (int64_t i = 0; i < tiles; i++)
#pragma GCC unroll 1  // GCC 12 drops the stores of Q6_K when it unrolls this loop
        for (int part = 0; part < kParts; part++)
            dequantize_part<Format>(values + (first + i) * Format::tile_bytes, Format::scale(scales, first + i, part),
                                    part, out + i * kTile * kLanes);
}

// Numbers as in packed_weight.py.
template <class Body>
void with_format(int format, Body&& body) {
    switch (format) {
        case 0: return body(FloatFormat<float>{});
        case 1: return body(FloatFormat<half>{});
        case 2: return body(FloatFormat<bfloat16>{});
        case 3: return body(Int8Rows{});
        case 4: return body(Q8_0{});
        case 5: return body(Q4_0{});
        case 6: return body(Q4_1{});
        case 7: return body(Q4_K{});
        case 8: return body(Q6_K{});
    }
}

inline int64_t tiles_of(int64_t k) { return (k + kTile - 1) / kTile; }

template <class Format>
struct Panel {
    const uint8_t *values, *scales;
    Panel() = default;
    Panel(const void* all_values, const void* all_scales, int64_t panel, int64_t k) {
        values = (const uint8_t*)all_values;
        scales = (const uint8_t*)all_scales;
        if constexpr (Format::is_float) {
            values += panel * k * kLanes * int64_t(sizeof(typename Format::Element));
        } else {
            values += panel * tiles_of(k) * Format::tile_bytes;
            scales += panel * Format::scale_bytes(tiles_of(k));
        }
    }

    // k0 is a multiple of 32; out holds `depth` rows rounded up to whole tiles.
    void dequantize(int64_t k0, int64_t depth, float* out) const {
        if constexpr (Format::is_float) {
            const auto* p = (const typename Format::Element*)values + k0 * kLanes;
            for (int64_t i = 0; i < depth * kLanes; i += kNativeLanes) {
                const NativeF value = native_load(p + i);
                std::memcpy(out + i, &value, sizeof value);
            }
        } else {
            dequantize_tiles<Format>(values, scales, k0 / kTile, tiles_of(depth), out);
        }
    }
};

}  // namespace vtk
