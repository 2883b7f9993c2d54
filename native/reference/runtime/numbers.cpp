/* Number formats: element sizes, conversion to and from float, Philox. */
#include "runtime/fp8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace chagres::reference {

size_t element_bits(int dtype) {
  switch (dtype) {
    case kNVTEByte:
    case kNVTEFloat8E4M3:
    case kNVTEFloat8E5M2:
    case kNVTEFloat8E8M0:
      return 8;
    case kNVTEInt16:
    case kNVTEFloat16:
    case kNVTEBFloat16:
      return 16;
    case kNVTEInt32:
    case kNVTEFloat32:
      return 32;
    case kNVTEInt64:
      return 64;
    case kNVTEFloat4E2M1:
      return 4;
    default:
      return 0;
  }
}

const char *dtype_name(int dtype) {
  static const char *const names[] = {"Byte",     "Int16",      "Int32",      "Int64",      "Float32",   "Float16",
                                      "BFloat16", "Float8E4M3", "Float8E5M2", "Float8E8M0", "Float4E2M1"};
  return dtype >= 0 && dtype < 11 ? names[dtype] : "unknown dtype";
}

float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t float_to_fp16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u); /* 65520 and above round to infinity */
  if (magnitude >= 0x38800000u) {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  /* Below 2^-14: adding 0.5 aligns the last bit kept with that of a float in [0.5, 1), so the addition rounds. */
  const uint32_t shifted = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f);
  return static_cast<uint16_t>(sign | (shifted - 0x3f000000u));
}

[[noreturn]] static void refuse_dtype(NVTEDType dtype) {
  fail(Caller::here(), text("The reference computes Float32, Float16, BFloat16, Float8E4M3 and Float8E5M2, got ",
                            dtype_name(dtype), " (", static_cast<int>(dtype), ")"));
}

float load(const void *data, int64_t index, NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return static_cast<const float *>(data)[index];
    case kNVTEFloat16:
      return fp16_to_float(static_cast<const uint16_t *>(data)[index]);
    case kNVTEBFloat16:
      return bf16_to_float(static_cast<const uint16_t *>(data)[index]);
    case kNVTEFloat8E4M3:
      return e4m3_to_float(static_cast<const uint8_t *>(data)[index]);
    case kNVTEFloat8E5M2:
      return e5m2_to_float(static_cast<const uint8_t *>(data)[index]);
    default:
      refuse_dtype(dtype);
  }
}

void store(void *data, int64_t index, NVTEDType dtype, float value) {
  switch (dtype) {
    case kNVTEFloat32:
      static_cast<float *>(data)[index] = value;
      return;
    case kNVTEFloat16:
      static_cast<uint16_t *>(data)[index] = float_to_fp16(value);
      return;
    case kNVTEBFloat16:
      static_cast<uint16_t *>(data)[index] = float_to_bf16(value);
      return;
    case kNVTEFloat8E4M3:
      static_cast<uint8_t *>(data)[index] = float_to_e4m3(value);
      return;
    case kNVTEFloat8E5M2:
      static_cast<uint8_t *>(data)[index] = float_to_e5m2(value);
      return;
    default:
      refuse_dtype(dtype);
  }
}

namespace {

CHAGRES_CLONES void bf16_run_to_float(float *destination, const uint16_t *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = bf16_to_float(source[i]);
}

CHAGRES_CLONES void float_run_to_bf16(uint16_t *destination, const float *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = float_to_bf16(source[i]);
}

CHAGRES_CLONES void e4m3_run_to_float(float *destination, const uint8_t *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = e4m3_to_float(source[i]);
}

CHAGRES_CLONES void e5m2_run_to_float(float *destination, const uint8_t *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = e5m2_to_float(source[i]);
}

CHAGRES_CLONES void float_run_to_e4m3(uint8_t *destination, const float *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = float_to_e4m3(source[i]);
}

CHAGRES_CLONES void float_run_to_e5m2(uint8_t *destination, const float *source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) destination[i] = float_to_e5m2(source[i]);
}

#if defined(__x86_64__)
bool has_f16c() {
  static const bool answer = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return answer;
}

__attribute__((target("avx2,f16c"))) int64_t f16c_run_to_float(float *destination, const uint16_t *source,
                                                               int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i *>(source + i));
    _mm256_storeu_ps(destination + i, _mm256_cvtph_ps(half));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) int64_t f16c_run_from_float(uint16_t *destination, const float *source,
                                                                 int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(source + i);
    __m128i half = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    /* x86 keeps a NaN's sign and payload, the GPU does not. */
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m128i nan16 = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
    half = _mm_blendv_epi8(half, _mm_set1_epi16(0x7fff), nan16);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(destination + i), half);
  }
  return i;
}
#else
bool has_f16c() { return false; }
int64_t f16c_run_to_float(float *, const uint16_t *, int64_t) { return 0; }
int64_t f16c_run_from_float(uint16_t *, const float *, int64_t) { return 0; }
#endif

}  // namespace

void to_float(float *destination, const void *data, NVTEDType dtype, int64_t count) {
  if (count <= 0) return;
  if (dtype == kNVTEFloat32) {
    std::memcpy(destination, data, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == kNVTEBFloat16) {
    bf16_run_to_float(destination, static_cast<const uint16_t *>(data), count);
  } else if (dtype == kNVTEFloat16) {
    const auto *source = static_cast<const uint16_t *>(data);
    for (int64_t i = has_f16c() ? f16c_run_to_float(destination, source, count) : 0; i < count; ++i)
      destination[i] = fp16_to_float(source[i]);
  } else if (dtype == kNVTEFloat8E4M3) {
    e4m3_run_to_float(destination, static_cast<const uint8_t *>(data), count);
  } else if (dtype == kNVTEFloat8E5M2) {
    e5m2_run_to_float(destination, static_cast<const uint8_t *>(data), count);
  } else {
    load(data, 0, dtype);
  }
}

void from_float(void *destination, const float *source, NVTEDType dtype, int64_t count) {
  if (count <= 0) return;
  if (dtype == kNVTEFloat32) {
    std::memcpy(destination, source, static_cast<size_t>(count) * sizeof(float));
  } else if (dtype == kNVTEBFloat16) {
    float_run_to_bf16(static_cast<uint16_t *>(destination), source, count);
  } else if (dtype == kNVTEFloat16) {
    auto *half = static_cast<uint16_t *>(destination);
    for (int64_t i = has_f16c() ? f16c_run_from_float(half, source, count) : 0; i < count; ++i)
      half[i] = float_to_fp16(source[i]);
  } else if (dtype == kNVTEFloat8E4M3) {
    float_run_to_e4m3(static_cast<uint8_t *>(destination), source, count);
  } else if (dtype == kNVTEFloat8E5M2) {
    float_run_to_e5m2(static_cast<uint8_t *>(destination), source, count);
  } else {
    store(destination, 0, dtype, source[0]);
  }
}

Philox4 philox(uint64_t seed, uint64_t subsequence, uint64_t offset) {
  uint32_t counter[4] = {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32),
                         static_cast<uint32_t>(subsequence), static_cast<uint32_t>(subsequence >> 32)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = static_cast<uint64_t>(0xD2511F53u) * counter[0];
    const uint64_t second = static_cast<uint64_t>(0xCD9E8D57u) * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
                              static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    std::memcpy(counter, next, sizeof(counter));
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return {{counter[0], counter[1], counter[2], counter[3]}};
}

}  // namespace chagres::reference
