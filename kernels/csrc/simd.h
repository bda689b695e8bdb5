// Sixteen floats as one value, on whatever registers the translation unit is compiled for.
//
// The same sources are compiled once per instruction set. Loops of the kernels run over 16 lanes everywhere, so every
// memory layout is the same; a lane is never combined with another except in the sums and maxima at the end of this file.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace vtk {

struct half {
    uint16_t bits;
};
struct bfloat16 {
    uint16_t bits;
};

#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
#if defined(__FMA__) || defined(__ARM_NEON)
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif
constexpr int kLanes = 16;
constexpr int kParts = kLanes / kNativeLanes;

typedef float NativeF __attribute__((vector_size(4 * kNativeLanes), may_alias));
typedef int32_t NativeI __attribute__((vector_size(4 * kNativeLanes), may_alias));

// Integer and float operators on these types are the compiler's; what follows needs an instruction of its own.

template <class R, class T>
inline R load_bits(const T* p) {
    R r;
    std::memcpy(&r, p, sizeof r);
    return r;
}

// Fetches cache lines ahead of their use, into the first- or second-level cache; any address will do.
template <int Level>
inline void prefetch(const void* start, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char*)start + i, 0, 4 - Level);
}

inline NativeI native_set1(int32_t x) { return NativeI{} + x; }
inline NativeF native_set1(float x) {  // through its bits: 0 + x would be an addition, for the sign of zero
    int32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return (NativeF)native_set1(bits);
}
inline NativeF to_float(NativeI x) { return __builtin_convertvector(x, NativeF); }

inline NativeF native_fma(NativeF a, NativeF b, NativeF c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

inline NativeF native_max(NativeF a, NativeF b) {  // a > b ? a : b, in one instruction
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    return a > b ? a : b;
#endif
}
inline NativeF native_min(NativeF a, NativeF b) { return -native_max(-a, -b); }

inline uint16_t float_to_half(float x) {  // round to nearest even
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {  // the addition rounds a subnormal result at its last place
        float y;
        std::memcpy(&y, &bits, 4);
        y += 0.5f;
        std::memcpy(&bits, &y, 4);
        return sign | uint16_t(bits - 0x3f000000);
    }
    return sign | uint16_t((bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13);
}

inline NativeF native_load(const float* p) { return load_bits<NativeF>(p); }

inline NativeF native_load(const half* p) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__ARM_NEON)
    return vcvt_f32_f16(vld1_f16((const __fp16*)p));
#else
    NativeI bits;
    for (int i = 0; i < kNativeLanes; i++) bits[i] = p[i].bits;
    const NativeI magnitude = bits & 0x7fff;
    // A half's bits in a float's place are 2^-112 of its value, subnormal ones included; infinity and NaN lack exponent.
    const NativeF scaled = (NativeF)(magnitude << 13) * 0x1p112f;
    const NativeI special = (magnitude >= 0x7c00) & 0x7f800000;
    return (NativeF)((NativeI)scaled | special | ((bits & 0x8000) << 16));
#endif
}

inline NativeF native_load(const bfloat16* p) {
    typedef uint16_t Bits __attribute__((vector_size(2 * kNativeLanes), may_alias));
    return (NativeF)(__builtin_convertvector(load_bits<Bits>(p), NativeI) << 16);
}

inline NativeF native_load(const int8_t* p) {
#if defined(__AVX512F__)
    return to_float((NativeI)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return to_float((NativeI)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    NativeI r;
    for (int i = 0; i < kNativeLanes; i++) r[i] = p[i];
    return to_float(r);
#endif
}

inline NativeF native_load(const uint8_t* p) {
#if defined(__AVX512F__)
    return to_float((NativeI)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return to_float((NativeI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    NativeI r;
    for (int i = 0; i < kNativeLanes; i++) r[i] = p[i];
    return to_float(r);
#endif
}

// Per lane: sum of the four products of its bytes, `w` unsigned and `x` signed, added to `sum`. `kByteOffset` is what
// the bits of `dot_full`'s weights lie above the value they multiply with; `dot` takes weights below 128 only.
inline NativeI dot(NativeI sum, NativeI w, NativeI x) {
#if defined(__AVX512VNNI__)
    return (NativeI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)x);
    return sum + (NativeI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__SSE2__)
    const __m128i low = _mm_set1_epi16(255), wv = (__m128i)w, xv = (__m128i)x;
    const __m128i even = _mm_madd_epi16(_mm_and_si128(wv, low), _mm_srai_epi16(_mm_slli_epi16(xv, 8), 8));
    const __m128i odd = _mm_madd_epi16(_mm_srli_epi16(wv, 8), _mm_srai_epi16(xv, 8));
    return sum + (NativeI)even + (NativeI)odd;
#else
    typedef uint32_t Unsigned __attribute__((vector_size(4 * kNativeLanes)));
    for (int shift = 0; shift < 32; shift += 8) {
        const NativeI byte = (NativeI)(((Unsigned)w >> shift) & 255u);
        sum += byte * (NativeI)((x << (24 - shift)) >> 24);
    }
    return sum;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
// maddubs saturates above 127: the sign of w moves to x, which is never -128.
constexpr int kByteOffset = 0;
inline NativeI dot_full(NativeI sum, NativeI w, NativeI x) {
    const __m256i value = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128));
    return dot(sum, (NativeI)_mm256_abs_epi8(value), (NativeI)_mm256_sign_epi8((__m256i)x, value));
}
#else
constexpr int kByteOffset = 128;
inline NativeI dot_full(NativeI sum, NativeI w, NativeI x) { return dot(sum, w, x); }
#endif

// Lane j of the result: in half the lanes, by a bit of j, b's lane j (of Upper) or the one Half before; in the others a's
// lane Half further (of Upper) or lane j.
template <int Half, bool Upper, int... J>
inline NativeF exchange(NativeF a, NativeF b, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (J & Half ? kNativeLanes + J - !Upper * Half : J + Upper * Half)...);
#else
    return __builtin_shuffle(a, b, NativeI{(J & Half ? kNativeLanes + J - !Upper * Half : J + Upper * Half)...});
#endif
}

// Row i, lane j to row j, lane i: in each pass the blocks of Half x Half right above and below the diagonal change places.
template <int Half = kNativeLanes / 2>
inline void transpose(NativeF* rows) {
    constexpr std::make_integer_sequence<int, kNativeLanes> lanes;
#pragma GCC unroll 16
    for (int i = 0; i < kNativeLanes; i++)
        if (!(i & Half)) {
            const NativeF a = rows[i], b = rows[i + Half];
            rows[i] = exchange<Half, false>(a, b, lanes);
            rows[i + Half] = exchange<Half, true>(a, b, lanes);
        }
    if constexpr (Half > 1) transpose<Half / 2>(rows);
}

struct V {
    NativeF part[kParts];
};

// f of the corresponding parts. Written out, since GCC keeps a struct in memory that a loop indexes.
template <class F, class... Vectors>
inline V map(F f, Vectors... v) {
    V r;
    r.part[0] = f(v.part[0]...);
    if constexpr (kParts > 1) r.part[1] = f(v.part[1]...);
    if constexpr (kParts > 2) {
        r.part[2] = f(v.part[2]...);
        r.part[3] = f(v.part[3]...);
    }
    return r;
}

inline V set1(float x) {
    const NativeF all = native_set1(x);
    return map([all](NativeF) { return all; }, V{});
}
template <class T>
inline V load(const T* p) {
    V r;
    r.part[0] = native_load(p);
    if constexpr (kParts > 1) r.part[1] = native_load(p + kNativeLanes);
    if constexpr (kParts > 2) {
        r.part[2] = native_load(p + 2 * kNativeLanes);
        r.part[3] = native_load(p + 3 * kNativeLanes);
    }
    return r;
}
inline void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }
inline void store(half* p, V v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v.part[0], _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)p + 1, _mm256_cvtps_ph(v.part[1], _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes; i++) p[i].bits = float_to_half(v.part[i / kNativeLanes][i % kNativeLanes]);
#endif
}
inline V fma(V a, V b, V c) { return map(native_fma, a, b, c); }
inline V operator+(V a, V b) { return map([](NativeF x, NativeF y) { return x + y; }, a, b); }
inline V operator-(V a, V b) { return map([](NativeF x, NativeF y) { return x - y; }, a, b); }
inline V operator*(V a, V b) { return map([](NativeF x, NativeF y) { return x * y; }, a, b); }
inline V operator/(V a, V b) { return map([](NativeF x, NativeF y) { return x / y; }, a, b); }
inline V max(V a, V b) { return map(native_max, a, b); }

// The first n lanes of p, or of v; `fill` in the others.
inline V load_first(const float* p, int n, float fill = 0) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; i++) lanes[i] = i < n ? p[i] : fill;
    return load(lanes);
}
inline void store_first(float* p, V v, int n) {
    float lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, size_t(n) * sizeof(float));
}
inline V keep_first(V v, int n, float fill) {
    static const float lane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const NativeF count = native_set1(float(n)), other = native_set1(fill);
    return map([=](NativeF x, NativeF index) { return index < count ? x : other; }, v, load(lane));
}

// e^x within 2 units in the last place, for -87.33 <= x <= 88.37. Polynomial: Cephes expf.
inline NativeF native_exp_within(NativeF x) {
    const NativeF round = native_set1(12582912.f);
    const NativeF rounded = native_fma(x, native_set1(1.44269504088896341f), round);  // its last bits are the integer
    const NativeF n = rounded - round;
    NativeF r = native_fma(n, native_set1(-0.693359375f), x);
    r = native_fma(n, native_set1(2.12194440e-4f), r);
    NativeF p = native_set1(1.9875691500e-4f);
    p = native_fma(p, r, native_set1(1.3981999507e-3f));
    p = native_fma(p, r, native_set1(8.3334519073e-3f));
    p = native_fma(p, r, native_set1(4.1665795894e-2f));
    p = native_fma(p, r, native_set1(1.6666665459e-1f));
    p = native_fma(p, r, native_set1(5.0000001201e-1f));
    p = native_fma(p, r * r, r + native_set1(1.f));
    // p * 2^n, a normal number. Not by adding to p's bits: what is no number may become one by that.
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    return p * (NativeF)(((NativeI)rounded << 23) + 0x3f800000);
#endif
}

// 0 below the smallest normal result.
inline NativeF native_exp_to_zero(NativeF x) {  // x <= 0
    const NativeF lowest = native_set1(-87.33f);
    return (NativeF)((NativeI)native_exp_within(native_max(lowest, x)) & ~(x < lowest));
}
// Infinite above 88.37.
inline NativeF native_exp(NativeF x) {
    const NativeF highest = native_set1(88.37f);
    const NativeF finite = native_exp_to_zero(native_min(highest, x));
    return x > highest ? native_set1(__builtin_inff()) : finite;
}
inline V exp(V x) { return map(native_exp, x); }
inline V exp_to_zero(V x) { return map(native_exp_to_zero, x); }

// The largest magnitude; NaN if there is one. As integers, magnitudes lie in the order of their values, NaN above all.
inline float largest_magnitude(const float* x, int count) {
    int32_t most = 0;
    for (int i = 0; i < count; i++) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float largest;
    std::memcpy(&largest, &most, sizeof largest);
    return largest;
}

inline float first_lane(V v) { return v.part[0][0]; }

// Over the lanes, always in the same order: each with the one half of them further, until one is left.
inline float sum_lanes(V v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(v.part[0]);
#elif defined(__AVX2__)
    const __m256 eight = v.part[0] + v.part[1];
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(two + _mm_movehdup_ps(two));
#endif
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}
inline float max_lanes(V v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(v.part[0]);
#elif defined(__AVX2__)
    const __m256 eight = _mm256_max_ps(v.part[0], v.part[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ps(two, _mm_movehdup_ps(two)));
#endif
    float lanes[kLanes];
    store(lanes, v);
    for (int width = kLanes / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

}  // namespace vtk

#define VTK_API extern "C" __attribute__((visibility("default")))
