// Pillow's resampling of one RGB picture in fixed point, and the normalization of its bytes, in one pass over memory.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"

using namespace vtk;

namespace {

constexpr int kPrecision = 22, kHalf = 1 << (kPrecision - 1), kTableHead = 2, kChannels = 3;

// Sums: eight where registers hold them; sixteen were no faster. Bytes: their whole parts, 0..255. GCC 12 converts
// between vectors of bytes and of integers byte by byte, so these conversions are spelled out.
#if defined(__AVX2__)
constexpr int kSums = 8;
#else
constexpr int kSums = 4;
#endif
constexpr int kRows = kSums / 4;  // lines that one vector holds a pixel of, each with a lane to spare
typedef int32_t Sums __attribute__((vector_size(4 * kSums), may_alias));
struct Bytes {
    uint8_t at[kSums];
};

#if defined(__AVX2__)
inline Sums load_line(const uint8_t* at) { return (Sums)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)at)); }
inline Sums load_pixels(const uint8_t* const* lines, int64_t at) {
    return (Sums)_mm256_cvtepu8_epi32(
        _mm_set_epi32(0, 0, load_bits<int32_t>(lines[1] + at), load_bits<int32_t>(lines[0] + at)));
}
inline Bytes to_bytes(Sums total) {
    const __m256i whole = (__m256i)(total >> kPrecision), words = _mm256_packus_epi32(whole, whole);
    const __m256i bytes = _mm256_packus_epi16(words, words);
    Bytes result;
    const int32_t low = _mm256_extract_epi32(bytes, 0), high = _mm256_extract_epi32(bytes, 4);
    std::memcpy(result.at, &low, 4);
    std::memcpy(result.at + 4, &high, 4);
    return result;
}
#else
inline Sums load_line(const uint8_t* at) { return Sums{at[0], at[1], at[2], at[3]}; }
inline Sums load_pixels(const uint8_t* const* lines, int64_t at) { return load_line(lines[0] + at); }
inline Bytes to_bytes(Sums total) {
    Bytes result;
    for (int lane = 0; lane < kSums; lane++)
        result.at[lane] = uint8_t(std::min(std::max(total[lane] >> kPrecision, 0), 255));
    return result;
}
#endif

struct Axis {
    const int32_t* rows;
    int64_t width, length;

    int64_t first(int64_t place) const { return rows[place * width]; }
    int64_t count(int64_t place) const { return rows[place * width + 1]; }
    const int32_t* weights(int64_t place) const { return rows + place * width + kTableHead; }
    // Where the picture is: places outside have no taps and lie at the ends.
    int64_t begin() const {
        int64_t place = 0;
        while (place < length && count(place) == 0) place++;
        return place;
    }
    int64_t end() const {
        int64_t place = length;
        while (place > 0 && count(place - 1) == 0) place--;
        return place;
    }
};

// kRows lines along x, each (width, 3), into lines of `to`; a pixel is read and written as four bytes.
void resample_x(const uint8_t* const* from, const Axis& across, int64_t begin, int64_t end, uint8_t* const* to) {
    for (int64_t x = begin; x < end; x++) {
        const int32_t* weights = across.weights(x);
        const int64_t first = across.first(x) * kChannels, count = across.count(x);
        Sums total = Sums{} + kHalf;
        for (int64_t tap = 0; tap < count; tap++) total += load_pixels(from, first + tap * kChannels) * weights[tap];
        const Bytes bytes = to_bytes(total);
        for (int line = 0; line < kRows; line++) std::memcpy(to[line] + x * kChannels, bytes.at + 4 * line, 4);
    }
}

// One line along y: each of `bytes` bytes from `count` lines that are `stride` apart.
void resample_y(const uint8_t* from, int64_t stride, const int32_t* weights, int64_t count, int64_t bytes, uint8_t* to) {
    const Sums half = Sums{} + kHalf;
    int64_t at = 0;
    for (; at + kSums <= bytes; at += kSums) {
        Sums total = half;
        for (int64_t tap = 0; tap < count; tap++) total += load_line(from + tap * stride + at) * weights[tap];
        const Bytes line = to_bytes(total);
        std::memcpy(to + at, line.at, sizeof line);
    }
    for (; at < bytes; at++) {
        int32_t total = kHalf;
        for (int64_t tap = 0; tap < count; tap++) total += from[tap * stride + at] * weights[tap];
        to[at] = uint8_t(std::min(std::max(total >> kPrecision, 0), 255));
    }
}

// One line of the result, planes `plane` floats apart. values: of each channel and byte.
void normalize(const uint8_t* line, int64_t begin, int64_t end, int64_t width, int pad, const float* values, float* to,
               int64_t plane) {
    for (int channel = 0; channel < kChannels; channel++, values += 256, to += plane) {
        std::fill(to, to + begin, values[pad]);
        for (int64_t x = begin; x < end; x++) to[x] = values[line[x * kChannels + channel]];
        std::fill(to + end, to + width, values[pad]);
    }
}

// One buffer per thread and use, which only grows.
enum class Use { kLines, kResult, kLast };

template <Use>
uint8_t* scratch(size_t count) {
    thread_local std::vector<uint8_t> buffer;
    if (buffer.size() < count) buffer.resize(count);
    return buffer.data();
}

struct Task {
    const uint8_t* pixels;
    int64_t source_height, source_width;
    Axis across, down;
    int pad;
    const float* values;
    float* out;

    int64_t stride() const { return source_width * kChannels; }
    int64_t resized_bytes() const { return across.length * kChannels; }
    // Pixels are read as four bytes: of the last line, a copy that ends later.
    const uint8_t* line(int64_t y) const {
        const uint8_t* start = pixels + y * stride();
        if (y + 1 < source_height) return start;
        uint8_t* last = scratch<Use::kLast>(stride() + 1);
        std::copy(start, start + stride(), last);
        return last;
    }
    void write(int64_t y, const uint8_t* resized) const {
        const int64_t width = across.length;
        const bool inside = down.count(y) > 0;
        normalize(resized, inside ? across.begin() : width, inside ? across.end() : width, width, pad, values,
                  out + y * width, width * down.length);
    }
};

// Along x first: each source line once, just before the first result that it is part of.
void x_then_y(const Task& task, int64_t y_begin, int64_t y_end) {
    const int64_t x_begin = task.across.begin(), x_end = task.across.end();
    const int64_t first = task.down.first(y_begin);
    const int64_t end = task.down.first(y_end - 1) + task.down.count(y_end - 1);
    const int64_t bytes = task.resized_bytes(), stride = bytes + 1;
    uint8_t* lines = scratch<Use::kLines>((end - first + kRows) * stride);
    uint8_t* result = scratch<Use::kResult>(bytes);
    int64_t done = first;
    for (int64_t y = y_begin; y < y_end; y++) {
        const int64_t from = task.down.first(y), count = task.down.count(y);
        for (; done < from + count; done += kRows) {
            const uint8_t* source[kRows];
            uint8_t* target[kRows];
            for (int line = 0; line < kRows; line++) {
                source[line] = task.line(std::min(done + line, end - 1));
                target[line] = lines + (done + line - first) * stride;
            }
            resample_x(source, task.across, x_begin, x_end, target);
        }
        resample_y(lines + (from - first) * stride, stride, task.down.weights(y), count, bytes, result);
        task.write(y, result);
    }
}

// Along y first: kRows lines of the result at a time.
void y_then_x(const Task& task, int64_t y_begin, int64_t y_end) {
    const int64_t x_begin = task.across.begin(), x_end = task.across.end();
    const int64_t wide = task.stride() + 1, bytes = task.resized_bytes() + 1;
    uint8_t* lines = scratch<Use::kLines>(kRows * wide);
    uint8_t* results = scratch<Use::kResult>(kRows * bytes);
    const uint8_t* source[kRows];
    uint8_t* target[kRows];
    for (int line = 0; line < kRows; line++) {
        source[line] = lines + line * wide;
        target[line] = results + line * bytes;
    }
    for (int64_t y = y_begin; y < y_end; y += kRows) {
        const int64_t count = std::min<int64_t>(kRows, y_end - y);
        for (int64_t line = 0; line < count; line++)
            resample_y(task.pixels + task.down.first(y + line) * task.stride(), task.stride(), task.down.weights(y + line),
                       task.down.count(y + line), task.stride(), lines + line * wide);
        resample_x(source, task.across, x_begin, x_end, target);
        for (int64_t line = 0; line < count; line++) task.write(y + line, target[line]);
    }
}

}  // namespace

VTK_API void vtk_resize_normalize(
    const uint8_t* pixels, int64_t source_height, int64_t source_width, const int32_t* across, int64_t across_width,
    const int32_t* down, int64_t down_width, int64_t height, int64_t width, int y_first, int pad, const float* values,
    float* out) {
    const Task task{pixels,
                    source_height,
                    source_width,
                    {across, across_width, width},
                    {down, down_width, height},
                    pad,
                    values,
                    out};
    const int64_t begin = task.down.begin(), end = task.down.end();
    if (begin < end) (y_first ? y_then_x : x_then_y)(task, begin, end);
    for (int64_t y = 0; y < height; y++)
        if (y < begin || y >= end) task.write(y, nullptr);
}
