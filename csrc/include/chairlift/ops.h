// Every native op, declared once with its shapes. Numerics: docs/architecture/numerics.md.
//
// Row-major f32 unless said otherwise. Each op is a function of its rows alone: the bits of a row do not depend on
// how many other rows there are, on the number of threads, or on the instruction set.
#pragma once

#include <cstdint>

namespace chairlift {

class Context;        // thread pool + kernel table of one engine (runtime/context.h)
struct PackedWeight;  // [out, in] weights in a kernel layout (kernels/packed_weight.h)
struct TensorView;    // weights as they lie in a file (kernels/packed_weight.h)
struct KVPool;        // the paged K and V of all layers (kernels/kv_pool.h)

// One step's arrays, borrowed from numpy for the length of a call.
struct BatchView {
  int64_t num_tokens = 0;
  int64_t num_reqs = 0;
  int64_t num_logits = 0;
  int64_t max_blocks = 0;                    // columns of block_tables
  const int32_t* input_ids = nullptr;        // [num_tokens]
  const int32_t* positions = nullptr;        // [num_tokens]
  const int32_t* query_start_loc = nullptr;  // [num_reqs + 1]
  const int32_t* seq_lens = nullptr;         // [num_reqs]
  const int32_t* block_tables = nullptr;     // [num_reqs, max_blocks]
  const int64_t* slot_mapping = nullptr;     // [num_tokens]
  const int32_t* logits_indices = nullptr;   // [num_logits]
  // The largest entries, for ops to compare with what they index.
  int32_t max_input_id = -1;
  int32_t max_block_id = -1;
  int32_t max_seq_len = 0;
  int64_t max_slot = -1;
};

enum class TensorType : int { F32, F16, BF16, Q4_0, Q4_1, Q8_0 };
enum class GateActivation : int { Silu, GeluTanh };
// What activations are multiplied as. Int8: rounded per row and 32 k where weights have 4 or 8 bits; another contract
// than F32 (other bits), the same everywhere too.
enum class ComputeDtype : int { F32, Int8 };

// y[r, n] = sum over k ascending of x[r, k] * w[n, k], one fma chain per output; + y[r, n] at the end if accumulate.
// Weights packed for Int8: group by group of 32 k, exact integer sums (PanelTask in arch/kernel_table.h).
// x: [rows, in]   y: [rows, out]
void linear(Context&, const float* x, int64_t rows, const PackedWeight& w, float* y, bool accumulate);

// y[r, n] = act(sum_k x[r, k] * gate[n, k]) * (sum_k x[r, k] * up[n, k]);  w holds gate and up, interleaved by panel.
// x: [rows, in]   y: [rows, out]
void gated_linear(Context&, const float* x, int64_t rows, const PackedWeight& w, GateActivation, float* y);

// y[t, :] = w[ids[t], :] dequantised.   y: [num_ids, in]
void embed(Context&, const int32_t* ids, int64_t num_ids, const PackedWeight& w, float* y);

// y[r, :] = x[r, :] * (1 / sqrt(mean(x[r, :]^2) + eps)) * weight.   x, y: [rows, width]; y may be x
void rms_norm(Context&, const float* x, int64_t rows, int64_t width, const float* weight, float eps, float* y);

// Rotates q in place, rotates k, rounds k and v to the pool's dtype and stores them at slot_mapping.
// qkv: [num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim]   cos, sin: [max_positions, head_dim / 2]
void rope_and_store(Context&, const BatchView&, float* qkv, int64_t num_q_heads, const float* cos, const float* sin,
                    KVPool&, int64_t layer);

// Causal attention of every row over its own request's cached tokens, the step's included.
// qkv as above (q already rotated)   out: [num_tokens, num_q_heads * head_dim]
void attention(Context&, const BatchView&, const float* qkv, int64_t num_q_heads, const KVPool&, int64_t layer,
               float scale, float* out);

// Rounds float weights [rows, in] to Q8_0 or Q4_1 blocks of 32 along `in`, those with a small squared error. Throws
// std::invalid_argument for other types, `in` that is no multiple of 32, and values not finite or beyond 32768.
// out: [rows, row_bytes(to, in)]
void quantize_weight(Context&, const TensorView& source, TensorType to, uint8_t* out);

// out[i, :] = x[indices[i], :].   x: [*, width]   out: [num_rows, width]
void gather_rows(Context&, const float* x, const int32_t* indices, int64_t num_rows, int64_t width, float* out);

}  // namespace chairlift
