#include <immintrin.h>

#include "arch/avx2/lanes.h"
#include "arch/avx2/math.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

inline __m256 load8(const float* x) { return _mm256_loadu_ps(x); }
inline __m256 load8(const uint16_t* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

inline __m256 load8(const int8_t* x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
}

// sum[p][c] += row[p] * column[c] for one step of a product; rows are broadcasts, columns are vectors in memory.
// With 12 sums of 16 registers, only the fewer of the two may be held, the others pass through one register.
template <typename T, int kPairs, int kColumns>
inline void multiply_add(const float* const (&rows)[kPairs], const T* const (&columns)[kColumns],
                         __m256 (&sum)[kPairs][kColumns]) {
  if constexpr (kColumns > kPairs) {
    __m256 row[kPairs];
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) row[p] = _mm256_broadcast_ss(rows[p]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const __m256 column = load8(columns[c]);
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) sum[p][c] = _mm256_fmadd_ps(row[p], column, sum[p][c]);
    }
  } else {
    __m256 column[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) column[c] = load8(columns[c]);
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) {
      const __m256 row = _mm256_broadcast_ss(rows[p]);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sum[p][c] = _mm256_fmadd_ps(row, column[c], sum[p][c]);
    }
  }
}

template <typename T>
const T* keys_of(const SplitTask& t, int64_t tile) {
  return reinterpret_cast<const T*>(t.tiles[tile]);
}

template <typename T>
const T* values_of(const SplitTask& t, int64_t tile) {
  return reinterpret_cast<const T*>(t.tiles[tile] + t.value_offset);
}

// Whether fetching pays: f32 of many pairs was probably widened just now and lies near.
template <typename T, int kPairs>
constexpr bool kFetches = sizeof(T) < 4 || kPairs <= 3;

// Into the second-level cache: blocks lie anywhere, so the hardware doesn't see them coming.
inline void fetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

// What the dot products of 8 keys of a tile are multiplied with.
inline __m256 score_factor(const SplitTask& t, int64_t tile, int64_t lane) {
  const __m256 scale = _mm256_set1_ps(t.scale);
  if (t.scale_offset == 0) return scale;
  const float* scales = reinterpret_cast<const float*>(t.tiles[tile] + t.scale_offset);
  return _mm256_mul_ps(_mm256_loadu_ps(scales + lane), scale);
}

// Scores of kTiles * 16 keys, from tile `first` on.
template <typename T, int kPairs, int kTiles>
void score_tiles(const SplitTask& t, int64_t first) {
  constexpr int64_t kLine = 4 / sizeof(T);  // rows of a tile of K that a cache line holds
  const int64_t head_dim = t.head_dim;
  const T *k[kTiles], *v[kTiles];
  const float* q[kPairs];
  __m256 sum[kPairs][2 * kTiles];
#pragma GCC unroll 8
  for (int i = 0; i < kTiles; ++i) {
    k[i] = keys_of<T>(t, first + i);
    v[i] = values_of<T>(t, first + i);
    fetch(v[i] + head_dim * kKeyTile);  // its scales
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
    q[p] = t.q[p];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kTiles; ++i) sum[p][i] = _mm256_setzero_ps();
  }
  for (int64_t line = 0; line < head_dim; line += kLine) {
#pragma GCC unroll 8
    for (int i = 0; kFetches<T, kPairs> && i < kTiles; ++i) fetch(v[i] + line * kKeyTile);
#pragma GCC unroll 4
    for (int64_t d = line; d < line + kLine; ++d) {
      const float* row[kPairs];
      const T* column[2 * kTiles];
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) row[p] = q[p] + d;
#pragma GCC unroll 8
      for (int i = 0; i < 2 * kTiles; ++i) column[i] = k[i / 2] + d * kKeyTile + i % 2 * 8;
      multiply_add<T>(row, column, sum);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2 * kTiles; ++i) {
    const __m256 factor = score_factor(t, first + i / 2, i % 2 * 8);
    float* scores = t.scores + first * kKeyTile + 8 * i;
#pragma GCC unroll 8
    for (int p = 0; p < kPairs; ++p) _mm256_store_ps(scores + p * kSplitKeys, _mm256_mul_ps(sum[p][i], factor));
  }
}

template <typename T, int kPairs>
void score_keys(const SplitTask& t, int64_t num_keys) {
  constexpr int kTiles = kPairs == 1 ? 4 : kPairs <= 3 ? 2 : 1;  // enough chains to fill the fma units
  const int64_t num_tiles = (num_keys + kKeyTile - 1) / kKeyTile;
  int64_t tile = 0;
  for (; tile + kTiles <= num_tiles; tile += kTiles) score_tiles<T, kPairs, kTiles>(t, tile);
  for (; tile < num_tiles; ++tile) score_tiles<T, kPairs, 1>(t, tile);
}

// Turns the scores of one pair into weights; lanes past its last key become 0 whatever they hold.
void softmax(float* scores, int64_t num_keys, float* max_out, float* sum_out) {
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 max = lowest;
  for (int64_t j = 0; j < num_keys; j += 8) {
    const __m256 visible = _mm256_castsi256_ps(first_lanes(num_keys - j));
    max = _mm256_max_ps(_mm256_blendv_ps(lowest, _mm256_load_ps(scores + j), visible), max);
  }
  *max_out = max_of_lanes(max);
  const __m256 largest = _mm256_set1_ps(*max_out);
  __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t j = 0; j < num_keys; j += 8) {
    const __m256 visible = _mm256_castsi256_ps(first_lanes(num_keys - j));
    const __m256 e = exp_f32x8(_mm256_sub_ps(_mm256_load_ps(scores + j), largest));
    const __m256 p = _mm256_and_ps(e, visible);
    _mm256_store_ps(scores + j, p);
    sum[j / 8 % 2] = _mm256_add_ps(sum[j / 8 % 2], p);
  }
  *sum_out = tree_sum(sum[0], sum[1]);
}

void scale_weights(const SplitTask& t, float* weights, int64_t num_keys) {
  for (int64_t j = 0; j < num_keys; j += 8) {
    const std::byte* values = t.tiles[j / kKeyTile] + t.value_offset;
    const float* scales = reinterpret_cast<const float*>(values + t.scale_offset) + j % kKeyTile;
    _mm256_store_ps(weights + j, _mm256_mul_ps(_mm256_load_ps(weights + j), _mm256_loadu_ps(scales)));
  }
}

// acc[p][d..) += weights[p][j] * v[j][d..) for j in [begin, end) ascending, on kRegisters * 8 columns.
template <typename T, int kPairs, int kRegisters>
void add_columns(const SplitTask& t, int64_t d, int64_t begin, int64_t end, const float* weights, float* acc) {
  const int64_t head_dim = t.head_dim;
  __m256 sum[kPairs][kRegisters];
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kRegisters; ++r) sum[p][r] = _mm256_loadu_ps(acc + p * head_dim + d + 8 * r);
  }
  for (int64_t j = begin; j < end;) {
    const int64_t tile = j / kKeyTile, tile_end = (tile + 1) * kKeyTile, element = j % kKeyTile * head_dim + d;
    const T *v = values_of<T>(t, tile) + element, *next = reinterpret_cast<const T*>(t.next_tiles[tile]) + element;
    fetch(t.next_tiles[tile] + t.scale_offset);
    for (const int64_t stop = tile_end < end ? tile_end : end; j < stop; ++j, v += head_dim, next += head_dim) {
#pragma GCC unroll 8
      for (int c = 0; kFetches<T, kPairs> && c < 8 * kRegisters; c += 64 / sizeof(T)) fetch(next + c);
      const float* weight[kPairs];
      const T* column[kRegisters];
#pragma GCC unroll 8
      for (int p = 0; p < kPairs; ++p) weight[p] = weights + p * kSplitKeys + j;
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) column[r] = v + 8 * r;
      multiply_add<T>(weight, column, sum);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kRegisters; ++r) _mm256_storeu_ps(acc + p * head_dim + d + 8 * r, sum[p][r]);
  }
}

template <typename T, int kPairs>
void add_values(const SplitTask& t, int64_t begin, int64_t end, const float* weights, float* acc) {
  constexpr int kWide = kPairs == 1 ? 8 : kPairs <= 3 ? 4 : 2;  // registers of columns at once: at most 12 sums
  int64_t d = 0;
  for (; d + 8 * kWide <= t.head_dim; d += 8 * kWide) add_columns<T, kPairs, kWide>(t, d, begin, end, weights, acc);
  for (; d < t.head_dim; d += 8) add_columns<T, kPairs, 1>(t, d, begin, end, weights, acc);
}

template <typename T, int kPairs>
void attend_pairs(const SplitTask& t) {
  const int64_t most_keys = t.num_keys[kPairs - 1], shared_keys = t.num_keys[0];
  score_keys<T, kPairs>(t, most_keys);
  for (int p = 0; p < kPairs; ++p) softmax(t.scores + p * kSplitKeys, t.num_keys[p], t.max + p, t.sum + p);
  for (int p = 0; t.scale_offset > 0 && p < kPairs; ++p) scale_weights(t, t.scores + p * kSplitKeys, t.num_keys[p]);
  for (int64_t i = 0; i < kPairs * t.head_dim; ++i) t.acc[i] = 0;
  add_values<T, kPairs>(t, 0, shared_keys, t.scores, t.acc);
  // A later row sees a few more keys than the first one; a weight of 0 would not do for a value that is not finite.
  for (int p = 1; p < kPairs; ++p) {
    if (t.num_keys[p] == shared_keys) continue;
    add_values<T, 1>(t, shared_keys, t.num_keys[p], t.scores + p * kSplitKeys, t.acc + p * t.head_dim);
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

void blend(float* acc, float a, const float* other, float b, int64_t n) {
  const __m256 a8 = _mm256_set1_ps(a), b8 = _mm256_set1_ps(b);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(other + i), b8);
    _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(_mm256_loadu_ps(acc + i), a8, scaled));
  }
}

void scale(const float* x, float factor, int64_t n, float* out) {
  const __m256 factor8 = _mm256_set1_ps(factor);
  for (int64_t i = 0; i < n; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor8));
}

}  // namespace

void register_avx2_attention(StepKernels& step) { step.attention = {"avx2", attend_split, 7, blend, scale}; }

}  // namespace chairlift
