// Sixteen floats at a time, in one register or several, with the same arithmetic on every machine.
//
// The library is compiled with -ffp-contract=off: products and sums are fused only where `fma` is
// written, so that two instantiations of one template never round differently.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#include <immintrin.h>
#endif

namespace octavo {

constexpr int kLanes = 16;

struct bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline void round_to(float x, float* to) { *to = x; }
// Rounds to nearest, ties to even; a NaN stays a NaN.
inline void round_to(float x, bf16* to) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = is_nan ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512F__)

using Lanes = __m512;

inline Lanes load(const float* p) { return _mm512_loadu_ps(p); }
inline Lanes load(const bf16* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
// Elements 0, 2, 4, ... and 1, 3, 5, ... of p[0..32).
inline Lanes load_even(const bf16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
inline Lanes load_odd(const bf16* p) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(0xffff0000)));
}
inline void store(float* p, Lanes x) { _mm512_storeu_ps(p, x); }
inline Lanes broadcast(float x) { return _mm512_set1_ps(x); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
// If x is NaN, `maximum` and `minimum` return it: vmaxps returns its second operand.
inline Lanes maximum(Lanes bound, Lanes x) { return _mm512_max_ps(bound, x); }
inline Lanes minimum(Lanes bound, Lanes x) { return _mm512_min_ps(bound, x); }
inline Lanes nearest_integer(Lanes x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2^n for integers n in [-127, 127], where 2^-127 counts as zero.
inline Lanes power_of_two(Lanes n) {
  __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Lanes {
  __m256 low, high;
};

inline Lanes operator+(Lanes a, Lanes b) { return {a.low + b.low, a.high + b.high}; }
inline Lanes operator-(Lanes a, Lanes b) { return {a.low - b.low, a.high - b.high}; }
inline Lanes operator*(Lanes a, Lanes b) { return {a.low * b.low, a.high * b.high}; }
inline Lanes operator/(Lanes a, Lanes b) { return {a.low / b.low, a.high / b.high}; }
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 widen(const bf16* p) {
  __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Lanes load(const bf16* p) { return {widen(p), widen(p + 8)}; }
inline __m256i load_pairs(const bf16* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline Lanes load_even(const bf16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(load_pairs(p + 16), 16))};
}
inline Lanes load_odd(const bf16* p) {
  __m256i high = _mm256_set1_epi32(0xffff0000);
  return {_mm256_castsi256_ps(_mm256_and_si256(load_pairs(p), high)),
          _mm256_castsi256_ps(_mm256_and_si256(load_pairs(p + 16), high))};
}
inline void store(float* p, Lanes x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes maximum(Lanes bound, Lanes x) {
  return {_mm256_max_ps(bound.low, x.low), _mm256_max_ps(bound.high, x.high)};
}
inline Lanes minimum(Lanes bound, Lanes x) {
  return {_mm256_min_ps(bound.low, x.low), _mm256_min_ps(bound.high, x.high)};
}
inline Lanes nearest_integer(Lanes x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
inline __m256 power_of_two(__m256 n) {
  __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Lanes power_of_two(Lanes n) { return {power_of_two(n.low), power_of_two(n.high)}; }

#else  // any other machine: loops that the compiler turns into what the machine has

struct Lanes {
  float lane[kLanes];
};

template <class F>
inline Lanes each(F f) {
  Lanes result;
  for (int i = 0; i < kLanes; ++i) result.lane[i] = f(i);
  return result;
}
inline Lanes operator+(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Lanes operator-(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Lanes operator*(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Lanes operator/(const Lanes& a, const Lanes& b) {
  return each([&](int i) { return a.lane[i] / b.lane[i]; });
}
template <class T>
inline Lanes load(const T* p) {
  return each([&](int i) { return to_float(p[i]); });
}
inline Lanes load_even(const bf16* p) {
  return each([&](int i) { return to_float(p[2 * i]); });
}
inline Lanes load_odd(const bf16* p) {
  return each([&](int i) { return to_float(p[2 * i + 1]); });
}
inline void store(float* p, const Lanes& x) { std::memcpy(p, x.lane, sizeof x.lane); }
inline Lanes broadcast(float x) {
  return each([&](int) { return x; });
}
inline Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
#ifdef __FP_FAST_FMAF
  return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
#else
  return a * b + c;
#endif
}
inline Lanes maximum(const Lanes& bound, const Lanes& x) {
  return each([&](int i) { return bound.lane[i] > x.lane[i] ? bound.lane[i] : x.lane[i]; });
}
inline Lanes minimum(const Lanes& bound, const Lanes& x) {
  return each([&](int i) { return bound.lane[i] < x.lane[i] ? bound.lane[i] : x.lane[i]; });
}
inline Lanes nearest_integer(const Lanes& x) {
  return each([&](int i) { return std::nearbyint(x.lane[i]); });
}
inline Lanes power_of_two(const Lanes& n) {
  return each([&](int i) {
    uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.lane[i]) + 127) << 23;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  });
}

#endif

// As `round_to`.
inline void store(bf16* p, Lanes x) {
#if defined(__AVX512F__)
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc00000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  return;
#endif
  float lane[kLanes];
  store(lane, x);
  for (int i = 0; i < kLanes; ++i) round_to(lane[i], p + i);
}

// The first `count` elements of p; the other lanes are `fill` and their memory is not used.
template <class T>
inline Lanes load_first(const T* p, int64_t count, float fill) {
  float lane[kLanes];
  for (int i = 0; i < kLanes; ++i) lane[i] = i < count ? to_float(p[i]) : fill;
  return load(lane);
}

template <class T>
inline void store_first(T* p, int64_t count, Lanes x) {
  float lane[kLanes];
  store(lane, x);
  for (int i = 0; i < count; ++i) round_to(lane[i], p + i);
}

// Both reductions halve the register again and again: one order for every machine.
inline float sum(Lanes x) {
  float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

inline float largest(Lanes x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#endif
  float lane[kLanes];
  store(lane, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

// 2^x to 1e-8 (Taylor to the seventh power about the nearest integer); 0 below 2^-126.
inline Lanes exp2(Lanes x) {
  x = minimum(broadcast(127.0f), maximum(broadcast(-127.0f), x));
  Lanes whole = nearest_integer(x);
  Lanes rest = x - whole;
  constexpr float c[] = {1.5252734e-5f, 1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f,
                         5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f};
  Lanes result = broadcast(c[0]);
  for (int i = 1; i < 8; ++i) result = fma(result, rest, broadcast(c[i]));
  return result * power_of_two(whole);
}

constexpr float kLog2E = 1.44269504f;

}  // namespace octavo

// Defines the exported functions of a kernel: EXPORT(suffix of the name, element type) for each.
#define OCTAVO_FOR_EACH_TYPE(EXPORT) \
  EXPORT(bf16, octavo::bf16)         \
  EXPORT(f32, float)
