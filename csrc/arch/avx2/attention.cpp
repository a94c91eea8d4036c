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

// scores[p][0..16) of one tile: two registers of keys, kPairs broadcasts of q.
template <typename T, int kPairs>
void score_tile(const SplitTask& t, const T* k, float* scores) {
  __m256 low[kPairs], high[kPairs];
  for (int p = 0; p < kPairs; ++p) low[p] = high[p] = _mm256_setzero_ps();
  for (int64_t d = 0; d < t.head_dim; ++d) {
    const __m256 k_low = load8(k + d * kKeyTile), k_high = load8(k + d * kKeyTile + 8);
    for (int p = 0; p < kPairs; ++p) {
      const __m256 q = _mm256_broadcast_ss(t.q[p] + d);
      low[p] = _mm256_fmadd_ps(q, k_low, low[p]);
      high[p] = _mm256_fmadd_ps(q, k_high, high[p]);
    }
  }
  const __m256 scale = _mm256_set1_ps(t.scale);
  for (int p = 0; p < kPairs; ++p) {
    _mm256_store_ps(scores + p * kSplitKeys, _mm256_mul_ps(low[p], scale));
    _mm256_store_ps(scores + p * kSplitKeys + 8, _mm256_mul_ps(high[p], scale));
  }
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

// acc[p][d..) += p[p][j] * v[j][d..) for j in [begin, end) ascending, on kRegisters * 8 columns.
template <typename T, int kPairs, int kRegisters>
void add_columns(const SplitTask& t, int64_t d, int64_t begin, int64_t end, const float* weights, float* acc) {
  __m256 sum[kPairs][kRegisters];
  for (int p = 0; p < kPairs; ++p) {
    for (int r = 0; r < kRegisters; ++r) sum[p][r] = _mm256_loadu_ps(acc + p * t.head_dim + d + 8 * r);
  }
  for (int64_t j = begin; j < end;) {
    const T* v = static_cast<const T*>(t.v_tiles[j / kKeyTile]) + j % kKeyTile * t.head_dim + d;
    const int64_t tile_end = (j / kKeyTile + 1) * kKeyTile;
    for (const int64_t stop = tile_end < end ? tile_end : end; j < stop; ++j, v += t.head_dim) {
      __m256 column[kRegisters];
      for (int r = 0; r < kRegisters; ++r) column[r] = load8(v + 8 * r);
      for (int p = 0; p < kPairs; ++p) {
        const __m256 weight = _mm256_broadcast_ss(weights + p * kSplitKeys + j);
        for (int r = 0; r < kRegisters; ++r) sum[p][r] = _mm256_fmadd_ps(weight, column[r], sum[p][r]);
      }
    }
  }
  for (int p = 0; p < kPairs; ++p) {
    for (int r = 0; r < kRegisters; ++r) _mm256_storeu_ps(acc + p * t.head_dim + d + 8 * r, sum[p][r]);
  }
}

template <typename T, int kPairs>
void add_values(const SplitTask& t, int64_t begin, int64_t end, const float* weights, float* acc) {
  constexpr int kWide = kPairs <= 3 ? 4 : 2;  // registers of columns at once: at most 12 sums
  int64_t d = 0;
  for (; d + 8 * kWide <= t.head_dim; d += 8 * kWide) add_columns<T, kPairs, kWide>(t, d, begin, end, weights, acc);
  for (; d < t.head_dim; d += 8) add_columns<T, kPairs, 1>(t, d, begin, end, weights, acc);
}

template <typename T, int kPairs>
void attend_pairs(const SplitTask& t) {
  const int64_t most_keys = t.num_keys[kPairs - 1], shared_keys = t.num_keys[0];
  for (int64_t j = 0; j < most_keys; j += kKeyTile) {
    score_tile<T, kPairs>(t, static_cast<const T*>(t.k_tiles[j / kKeyTile]), t.scores + j);
  }
  for (int p = 0; p < kPairs; ++p) softmax(t.scores + p * kSplitKeys, t.num_keys[p], t.max + p, t.sum + p);
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

void attend_split(const SplitTask& t) { t.is_half ? attend_typed<uint16_t>(t) : attend_typed<float>(t); }

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

void register_avx2_attention(StepKernels& step) { step.attention = {attend_split, blend, scale}; }

}  // namespace chairlift
