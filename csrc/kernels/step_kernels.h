// The leaf kernels of a step that are not matrix products: plain data, so that files under arch/ may see it.
// Each has a generic version (kernels/*_generic.cpp) and may have faster ones with the same bits (arch/<isa>/).
#pragma once

#include <cstddef>
#include <cstdint>

namespace chairlift {

// -- attention (kernels/attention.cpp) -----------------------------------------------------------------------------

constexpr int64_t kSplitKeys = 256;  // keys whose softmax is computed from scratch
constexpr int64_t kKeyTile = 16;     // keys of a tile: the lanes of a score
constexpr int64_t kSplitTiles = kSplitKeys / kKeyTile;
constexpr int64_t kMaxPairs = 6;  // (row, q head) pairs that share each load of K and V

// How the cache keeps K and V. Int8: integers of -127..127 and one f32 scale per (token, kv head), for K and V each.
enum class KVDtype : int { F16, F32, Int8 };

// A few (row, q head) pairs against one split of one kv head's keys:
//   score[j] = scale * (sum over d ascending of q[d] * k[d][j], one fma chain)     for the visible keys j < num_keys
//   max = max score;   p[j] = exp(score[j] - max)
//   sum = sum of p over 16 lanes (j mod 16), then the 8-4-2-1 tree
//   acc[d] = sum over j ascending of p[j] * v[j][d], one fma chain
// With scales of K and V (Int8), k and v are the integers; the score's factor is k_scale[j] * scale, rounded, and
// after the sum of p each p[j] becomes p[j] * v_scale[j], rounded.
//
// K of a tile: [head_dim][16], and the scales of its 16 tokens scale_offset bytes after it; V: [16][head_dim],
// value_offset bytes after K, and its scales likewise.
struct SplitTask {
  int64_t head_dim = 0;
  int64_t num_pairs = 0;
  const float* q[kMaxPairs] = {};    // [head_dim] each
  int64_t num_keys[kMaxPairs] = {};  // 1..256, not falling from one pair to the next; later keys are never read
  const std::byte* const* tiles = nullptr;       // [16], those with visible keys
  const std::byte* const* next_tiles = nullptr;  // [16], any address: what to fetch into the cache meanwhile
  KVDtype dtype = KVDtype::F32;                  // of the tiles; F32 too when widened before
  int64_t value_offset = 0;
  int64_t scale_offset = 0;  // 0: no scales
  float scale = 1;
  float* scores = nullptr;  // scratch [kMaxPairs][256], 64-byte aligned
  float* max = nullptr;     // [num_pairs]
  float* sum = nullptr;     // [num_pairs]
  float* acc = nullptr;     // [num_pairs][head_dim]
};

struct AttentionKernels {
  const char* origin = "";  // see LinearKernels
  void (*attend_split)(const SplitTask&) = nullptr;
  int64_t widen_pairs = 0;  // how many pairs must read f16 or int8 before it pays to widen it to f32 first
  // acc[i] = acc[i] * a + (other[i] * b), the outer one fused.   n: a multiple of 8
  void (*blend)(float* acc, float a, const float* other, float b, int64_t n) = nullptr;
  // out[i] = x[i] * factor.   n: a multiple of 8
  void (*scale)(const float* x, float factor, int64_t n, float* out) = nullptr;
};

// -- rounding, rope, norms -----------------------------------------------------------------------------------------

struct RowKernels {
  const char* origin = "";
  void (*widen)(const uint16_t* x, int64_t n, float* y) = nullptr;   // f16 to f32.   n: a multiple of 8
  void (*narrow)(const float* x, int64_t n, uint16_t* y) = nullptr;  // f32 to f16, to nearest even.   n: same
  void (*widen_int8)(const int8_t* x, int64_t n, float* y) = nullptr;  // n: same
  // q[i] = x[i] * (127 / largest |x|), to nearest even;  scale = largest / 127.   n: same
  // A value that is not finite gives scale NaN and q 0, a largest below 2^-100 scale 0 and q 0.
  void (*quantise)(const float* x, int64_t n, int8_t* q, float* scale) = nullptr;
  // Rotates pairs (i, i + half): x[i] = x[i] c - x[i + half] s;  x[i + half] = x[i + half] c + x[i] s.   half: 4 * any
  void (*rotate)(float* x, const float* cos, const float* sin, int64_t half) = nullptr;
  // The row form of rms_norm in ops.h; the sum of squares over 16 lanes and the tree.
  void (*rms_norm)(const float* x, int64_t n, const float* weight, float eps, float* y) = nullptr;
};

// -- sampling (kernels/sampling.cpp) -------------------------------------------------------------------------------

constexpr float kFixedOne = 1099511627776.0f;  // 2^40: the integer weight of the most likely token

struct SamplingKernels {
  const char* origin = "";
  float (*max)(const float* x, int64_t n) = nullptr;                  // NaN ignored; -inf when there is nothing else
  int64_t (*find)(const float* x, int64_t n, float value) = nullptr;  // first index that equals value, or n
  // Ascending indices i with x[i] >= floor; returns how many.
  int64_t (*at_least)(const float* x, int64_t n, float floor, int32_t* indices) = nullptr;
  // y = x / divisor, NaN becomes -inf; returns the max. y may be x.
  float (*divide)(const float* x, int64_t n, float divisor, float* y) = nullptr;
  // w = exp(x - max) * 2^40, NaN as 0; returns the sum of the truncated values. max is finite and none is above it.
  uint64_t (*weights)(const float* x, int64_t n, float max, float* w) = nullptr;
  double (*sum_exp)(const float* x, int64_t n, float max) = nullptr;  // 16 lanes of f64, then the tree; NaN as 0
  int64_t (*count_ahead)(const float* x, int64_t n, int64_t token) = nullptr;  // before it by (x desc, index asc)
};

struct StepKernels {
  AttentionKernels attention;
  RowKernels row;
  SamplingKernels sampling;
};

void register_generic_attention(StepKernels&);
void register_generic_rows(StepKernels&);
void register_generic_sampling(StepKernels&);
void register_avx2_attention(StepKernels&);
void register_avx2_rows(StepKernels&);
void register_avx2_sampling(StepKernels&);
void register_avx512_attention(StepKernels&);

}  // namespace chairlift
