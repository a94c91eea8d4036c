#include <limits>

#include "kernels/math.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

float load(const float* x) { return *x; }
float load(const uint16_t* x) { return float_from_half(*x); }
float load(const int8_t* x) { return static_cast<float>(*x); }

float tree_sum(float* lanes) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

float load_scale(const SplitTask& t, const std::byte* half_tile, int64_t key) {
  return reinterpret_cast<const float*>(half_tile + t.scale_offset)[key % kKeyTile];
}

template <typename T>
float score_of(const SplitTask& t, int64_t pair, int64_t key) {
  const std::byte* tile = t.tiles[key / kKeyTile];
  const T* k = reinterpret_cast<const T*>(tile) + key % kKeyTile;
  float dot = 0;
  for (int64_t d = 0; d < t.head_dim; ++d) dot = fma_f32(t.q[pair][d], load(k + d * kKeyTile), dot);
  return dot * (t.scale_offset > 0 ? load_scale(t, tile, key) * t.scale : t.scale);
}

template <typename T>
void add_values(const SplitTask& t, const float* p, int64_t num_keys, float* acc) {
  for (int64_t d = 0; d < t.head_dim; ++d) acc[d] = 0;
  for (int64_t j = 0; j < num_keys; ++j) {
    const std::byte* values = t.tiles[j / kKeyTile] + t.value_offset;
    const T* v = reinterpret_cast<const T*>(values) + j % kKeyTile * t.head_dim;
    const float weight = t.scale_offset > 0 ? p[j] * load_scale(t, values, j) : p[j];
    for (int64_t d = 0; d < t.head_dim; ++d) acc[d] = fma_f32(weight, load(v + d), acc[d]);
  }
}

template <typename T>
void attend_pair(const SplitTask& t, int64_t pair) {
  const int64_t num_keys = t.num_keys[pair];
  float* p = t.scores;
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < num_keys; ++j) {
    p[j] = score_of<T>(t, pair, j);
    if (p[j] > max) max = p[j];
  }
  float lanes[kKeyTile] = {};
  for (int64_t j = 0; j < num_keys; ++j) {
    p[j] = exp_f32(p[j] - max);
    lanes[j % kKeyTile] += p[j];
  }
  t.max[pair] = max;
  t.sum[pair] = tree_sum(lanes);
  add_values<T>(t, p, num_keys, t.acc + pair * t.head_dim);
}

template <typename T>
void attend_pairs(const SplitTask& t) {
  for (int64_t pair = 0; pair < t.num_pairs; ++pair) attend_pair<T>(t, pair);
}

void attend_split(const SplitTask& t) {
  switch (t.dtype) {
    case KVDtype::F16: return attend_pairs<uint16_t>(t);
    case KVDtype::F32: return attend_pairs<float>(t);
    case KVDtype::Int8: return attend_pairs<int8_t>(t);
  }
}

void blend(float* acc, float a, const float* other, float b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) acc[i] = fma_f32(acc[i], a, other[i] * b);
}

void scale(const float* x, float factor, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

}  // namespace

void register_generic_attention(StepKernels& step) { step.attention = {"generic", attend_split, 7, blend, scale}; }

}  // namespace chairlift
