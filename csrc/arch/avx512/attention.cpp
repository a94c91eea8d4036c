#include <immintrin.h>

#include "arch/avx512/lanes.h"
#include "arch/avx512/math.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE __m512 load16(const float* x) { return _mm512_loadu_ps(x); }
CHAIRLIFT_INLINE __m512 load16(const uint16_t* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
CHAIRLIFT_INLINE __m512 widen16(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }
CHAIRLIFT_INLINE __m512 load16(const int8_t* x) {
  return widen16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}
CHAIRLIFT_INLINE __m512 load_lanes(__mmask16 lanes, const int8_t* x) {
  return widen16(_mm_maskz_loadu_epi8(lanes, x));
}
CHAIRLIFT_INLINE __m512 load_lanes(__mmask16 lanes, const float* x) { return _mm512_maskz_loadu_ps(lanes, x); }
CHAIRLIFT_INLINE __m512 load_lanes(__mmask16 lanes, const uint16_t* x) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, x));
}

template <typename T>
CHAIRLIFT_INLINE const T* keys_of(const SplitTask& t, int64_t tile) {
  return reinterpret_cast<const T*>(t.tiles[tile]);
}

template <typename T>
CHAIRLIFT_INLINE const T* values_of(const SplitTask& t, int64_t tile) {
  return reinterpret_cast<const T*>(t.tiles[tile] + t.value_offset);
}

// Into the second-level cache: blocks lie anywhere, so the hardware doesn't see them coming.
CHAIRLIFT_INLINE void fetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

CHAIRLIFT_INLINE __m512 load_scales(const SplitTask& t, const std::byte* half_tile) {
  return _mm512_loadu_ps(reinterpret_cast<const float*>(half_tile + t.scale_offset));
}

// What the dot products of a tile are multiplied with.
CHAIRLIFT_INLINE __m512 score_factor(const SplitTask& t, int64_t tile) {
  const __m512 scale = _mm512_set1_ps(t.scale);
  return t.scale_offset > 0 ? _mm512_mul_ps(load_scales(t, t.tiles[tile]), scale) : scale;
}

// Scores of kTiles * 16 keys, from tile `first` on.
template <typename T, int kPairs, int kTiles>
void score_tiles(const SplitTask& t, int64_t first) {
  constexpr bool kFetch = sizeof(T) < 4 || kPairs <= 3;  // f32 of many pairs was widened just now and lies in L2
  constexpr int64_t kLine = 4 / sizeof(T);               // rows of a tile of K that a cache line holds
  const T *k[kTiles], *v[kTiles];
  const float* q[kPairs];
  __m512 sum[kPairs][kTiles];
#pragma GCC unroll 8
  for (int i = 0; i < kTiles; ++i) {
    k[i] = keys_of<T>(t, first + i);
    v[i] = values_of<T>(t, first + i);
    if (kFetch) fetch(v[i] + t.head_dim * kKeyTile);  // its scales
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
    q[p] = t.q[p];
#pragma GCC unroll 8
    for (int i = 0; i < kTiles; ++i) sum[p][i] = _mm512_setzero_ps();
  }
  for (int64_t line = 0; line < t.head_dim; line += kLine) {
#pragma GCC unroll 8
    for (int i = 0; kFetch && i < kTiles; ++i) fetch(v[i] + line * kKeyTile);
#pragma GCC unroll 4
    for (int64_t d = line; d < line + kLine; ++d) {
      __m512 column[kTiles];
#pragma GCC unroll 8
      for (int i = 0; i < kTiles; ++i) column[i] = load16(k[i] + d * kKeyTile);
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
        for (int i = 0; i < kTiles; ++i) fma_into(sum[p][i], q[p][d], column[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTiles; ++i) {
    const __m512 factor = score_factor(t, first + i);
    float* scores = t.scores + (first + i) * kKeyTile;
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) _mm512_store_ps(scores + p * kSplitKeys, _mm512_mul_ps(sum[p][i], factor));
  }
}

// Scores of the tiles in [first, end), kTiles at a time while there are so many.
template <typename T, int kPairs, int kTiles>
void score_keys(const SplitTask& t, int64_t first, int64_t end) {
  for (; first + kTiles <= end; first += kTiles) score_tiles<T, kPairs, kTiles>(t, first);
  if constexpr (kTiles > 1) score_keys<T, kPairs, kTiles / 2>(t, first, end);
}

// Turns 16 N scores into weights and adds them to the sums; those past the first `num_keys` become 0.
template <int N>
CHAIRLIFT_INLINE void exponentials(float* scores, __m512 largest, int64_t num_keys, __m512& sum) {
  __m512 e[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) e[i] = _mm512_sub_ps(_mm512_load_ps(scores + 16 * i), largest);
  exp_f32x16(e);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    if (N == 1) e[i] = _mm512_maskz_mov_ps(first_lanes(num_keys), e[i]);
    _mm512_store_ps(scores + 16 * i, e[i]);
    sum = _mm512_add_ps(sum, e[i]);
  }
}

float max_score(const float* scores, int64_t num_keys) {
  __m512 max = _mm512_set1_ps(-__builtin_inff());
  int64_t j = 0;
  for (; j + 16 <= num_keys; j += 16) max = _mm512_max_ps(_mm512_load_ps(scores + j), max);  // not of NaN
  const __mmask16 rest = first_lanes(num_keys - j);
  return max_of_lanes(_mm512_mask_max_ps(max, rest, _mm512_maskz_load_ps(rest, scores + j), max));
}

// Turns the scores of one pair into weights and returns their sum; lanes past its last key become 0 whatever they hold.
float softmax(float* scores, int64_t num_keys, float max) {
  const __m512 largest = _mm512_set1_ps(max);
  __m512 sum = _mm512_setzero_ps();
  int64_t j = 0;
  for (; j + 64 <= num_keys; j += 64) exponentials<4>(scores + j, largest, 64, sum);
  for (; j < num_keys; j += 16) exponentials<1>(scores + j, largest, num_keys - j, sum);
  return tree_sum(sum);
}

void scale_weights(const SplitTask& t, float* weights, int64_t num_keys) {
  for (int64_t j = 0; j < num_keys; j += kKeyTile) {
    const __m512 scales = load_scales(t, t.tiles[j / kKeyTile] + t.value_offset);
    _mm512_store_ps(weights + j, _mm512_mul_ps(_mm512_load_ps(weights + j), scales));
  }
}

// acc[p][d..) += weights[p][j] * v[j][d..) for j in [begin, end) ascending, on kVectors * 16 columns, or on those
// of `lanes` when there is but one vector. From 0 on, the sums start from 0.
template <typename T, int kPairs, int kVectors>
void add_columns(const SplitTask& t, int64_t d, int64_t begin, int64_t end, const float* weights, float* acc,
                 __mmask16 lanes) {
  const int64_t head_dim = t.head_dim;
  __m512 sum[kPairs][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      sum[p][c] = begin == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(lanes, acc + p * head_dim + d + 16 * c);
    }
  }
  for (int64_t j = begin; j < end;) {
    const int64_t tile = j / kKeyTile, tile_end = (tile + 1) * kKeyTile, element = j % kKeyTile * head_dim + d;
    const T *v = values_of<T>(t, tile) + element, *next = reinterpret_cast<const T*>(t.next_tiles[tile]) + element;
    fetch(t.next_tiles[tile] + t.scale_offset);
    for (const int64_t stop = tile_end < end ? tile_end : end; j < stop; ++j, v += head_dim, next += head_dim) {
#pragma GCC unroll 8
      for (int c = 0; c < 16 * kVectors; c += 64 / sizeof(T)) fetch(next + c);
      __m512 column[kVectors];
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) column[c] = kVectors == 1 ? load_lanes(lanes, v) : load16(v + 16 * c);
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
        for (int c = 0; c < kVectors; ++c) fma_into(sum[p][c], weights[p * kSplitKeys + j], column[c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) _mm512_mask_storeu_ps(acc + p * head_dim + d + 16 * c, lanes, sum[p][c]);
  }
}

// The columns from d on, kVectors * 16 at a time while there are so many.
template <typename T, int kPairs, int kVectors>
void add_values(const SplitTask& t, int64_t d, int64_t begin, int64_t end, const float* weights, float* acc) {
  for (; d + 16 * kVectors <= t.head_dim; d += 16 * kVectors) {
    add_columns<T, kPairs, kVectors>(t, d, begin, end, weights, acc, 0xffff);
  }
  if constexpr (kVectors > 1) {
    add_values<T, kPairs, kVectors / 2>(t, d, begin, end, weights, acc);
  } else if (d < t.head_dim) {
    add_columns<T, kPairs, 1>(t, d, begin, end, weights, acc, first_lanes(t.head_dim - d));
  }
}

template <typename T, int kPairs>
void attend_pairs(const SplitTask& t) {
  constexpr int kWide = kPairs == 1 ? 8 : 4;  // vectors of keys or columns at once: at most 24 sums
  const int64_t most_keys = t.num_keys[kPairs - 1], shared_keys = t.num_keys[0];
  score_keys<T, kPairs, kWide>(t, 0, (most_keys + kKeyTile - 1) / kKeyTile);
  for (int p = 0; p < kPairs; ++p) t.max[p] = max_score(t.scores + p * kSplitKeys, t.num_keys[p]);
  for (int p = 0; p < kPairs; ++p) t.sum[p] = softmax(t.scores + p * kSplitKeys, t.num_keys[p], t.max[p]);
  for (int p = 0; t.scale_offset > 0 && p < kPairs; ++p) scale_weights(t, t.scores + p * kSplitKeys, t.num_keys[p]);
  add_values<T, kPairs, kWide>(t, 0, 0, shared_keys, t.scores, t.acc);
  // A later row sees a few more keys than the first one; a weight of 0 would not do for a value that is not finite.
  for (int p = 1; p < kPairs; ++p) {
    if (t.num_keys[p] == shared_keys) continue;
    add_values<T, 1, 8>(t, 0, shared_keys, t.num_keys[p], t.scores + p * kSplitKeys, t.acc + p * t.head_dim);
  }
}

template <typename T>
void attend_typed(const SplitTask& t) {
  switch (t.num_pairs) {
    case 1: return attend_pairs<T, 1>(t);
    case 2: return attend_pairs<T, 2>(t);
    case 3: return attend_pairs<T, 3>(t);
    case 4: return attend_pairs<T, 4>(t);
    case 5: return attend_pairs<T, 5>(t);
    default: return attend_pairs<T, 6>(t);
  }
}

void attend_split(const SplitTask& t) {
  switch (t.dtype) {
    case KVDtype::F16: return attend_typed<uint16_t>(t);
    case KVDtype::F32: return attend_typed<float>(t);
    case KVDtype::Int8: return attend_typed<int8_t>(t);
  }
}

}  // namespace

void register_avx512_attention(StepKernels& step) {
  step.attention.origin = "avx512";
  step.attention.attend_split = attend_split;
  step.attention.widen_pairs = INT64_MAX;  // it widens on units that the products leave idle
}

}  // namespace chairlift
