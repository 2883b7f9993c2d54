/*
 * exp, tanh, logistic function and normal distribution that compilers vectorize: no branches, no tables, no calls. Within 3e-7 of
 * the true value, relative (tanh) or relative to the result (exp; 0 where that is subnormal).
 */
#ifndef CHAGRES_ELEMENTARY_H
#define CHAGRES_ELEMENTARY_H

#include <limits>

#include "runtime/reference.h"

namespace chagres::reference {

/* exp(x) = 2^n exp(r) with n = round(x / ln 2); exp(r) by a polynomial on |r| <= ln 2 / 2. */
inline float fast_exp(float x) {
  constexpr float kHigh = 88.72283f, kLow = -87.33654f; /* between them the result is no infinity and not subnormal */
  constexpr float kRounder = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  /* Times 2^n: n goes onto the exponent. Bits above the integer's are shifted out. */
  const float scaled = bit_cast<float>(bit_cast<uint32_t>(p) + (bit_cast<uint32_t>(shifted) << 23));
  const float finite = x < kLow ? 0.0f : scaled;
  return x <= kHigh ? finite : x + std::numeric_limits<float>::infinity(); /* NaN stays NaN */
}

inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

inline float fast_tanh(float x) {
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float small = p * square * x + x;
  const float magnitude = x < 0 ? -x : x;
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f);
  /* A 0 keeps its sign, as on the GPU. */
  return magnitude == 0 ? x : magnitude < 0.625f ? small : (x < 0 ? -large : large);
}

/* GELU by tanh, the one of Transformer Engine: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
inline float gelu(float x) { return x * (0.5f + 0.5f * fast_tanh(x * (0.79788456f + 0.03567741f * x * x))); }

inline float gelu_derivative(float x) {
  const float t = fast_tanh(0.79788456f * x * (1.0f + 0.044715f * x * x));
  return 0.5f * x * ((1.0f - t * t) * (0.79788456f + 0.1070322243f * x * x)) + 0.5f * (1.0f + t);
}

/* (1 + erf(x / sqrt 2)) / 2, the share of a normal distribution below x: within 3e-7, below 0 relative to the result times 1 + x^2.
 * By the fit of erfc in W. Press et al., Numerical recipes, 6.2. */
inline float normal_distribution(float x) {
  const float z = 0.70710678f * (x < 0 ? -x : x);
  const float t = 1.0f / (1.0f + 0.5f * z);
  float p = 0.17087277f;
  p = p * t - 0.82215223f;
  p = p * t + 1.48851587f;
  p = p * t - 1.13520398f;
  p = p * t + 0.27886807f;
  p = p * t - 0.18628806f;
  p = p * t + 0.09678418f;
  p = p * t + 0.37409196f;
  p = p * t + 1.00002368f;
  p = p * t - 1.26551223f;
  const float tail = 0.5f * t * fast_exp(p - z * z);
  return x < 0 ? tail : 1.0f - tail;
}

}  // namespace chagres::reference

#endif /* CHAGRES_ELEMENTARY_H */
