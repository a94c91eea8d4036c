#include "bindings/step_ops.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>

#include "bindings/checks.h"

namespace chairlift {
namespace {

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

void check_width(const char* name, const Activation& activation, int64_t width) {
  require(activation.width == width, name, " has ", activation.width, " columns; it must have ", width);
}

void check_axis(const char* name, const Activation& activation, Axis axis) {
  require(activation.axis == axis, name, " must have one row for each ", axis == Axis::Tokens ? "token" : "row of logits");
}

void check_same_axis(const Activation& x, const Activation& out) {
  require(x.axis == out.axis, "x and out must be on the same axis");
}

void check_rows(const Activation& activation, const BatchView& batch) {
  require(activation.rows(batch) <= activation.max_rows, "the step has ", activation.rows(batch),
          " rows; an activation has room for ", activation.max_rows);
}

std::function<void(const BatchView&)> rows_check(std::initializer_list<Activation> activations) {
  const Activation least = std::min(activations, [](const Activation& a, const Activation& b) {
    return a.max_rows < b.max_rows;
  });
  return [least](const BatchView& batch) { check_rows(least, batch); };
}

Work no_work(const BatchView&) { return {}; }

void check_product(const Activation& x, const PackedWeight& w, bool gated, const Activation& out) {
  require(w.gated == gated, gated ? "gated_linear needs a weight made by pack_gated_linear"
                                  : "linear and embed need a weight made by pack_linear");
  check_same_axis(x, out);
  check_width("x", x, w.in);
  check_width("out", out, w.out);
}

std::function<Work(const BatchView&)> product_work(const Activation& x, const PackedWeight& w) {
  const int64_t matrices = w.gated && w.segments.size() == 1 ? 2 : 1;  // that a segment's outputs count in
  Work of_row;
  for (const Segment& segment : w.segments) {
    const auto ops = static_cast<double>(2 * matrices * segment.num_out * w.in);
    (is_integer(segment.layout) ? of_row.int8_ops : of_row.flops) += ops;
  }
  return [x, of_row, bytes = static_cast<double>(w.bytes())](const BatchView& batch) {
    const auto rows = static_cast<double>(x.rows(batch));
    return Work{of_row.flops * rows, of_row.int8_ops * rows, rows > 0 ? bytes : 0};
  };
}

void check_layer(const KVPool& pool, int64_t layer) {
  require(layer >= 0 && layer < pool.num_layers, "layer is ", layer, ", outside the ", pool.num_layers,
          " layers of the KV pool");
}

// Number of q heads of q | k | v columns that fit the pool.
int64_t q_heads(const Activation& qkv, const KVPool& pool) {
  const int64_t heads = qkv.width / pool.head_dim - 2 * pool.num_kv_heads;
  require(heads >= 1 && qkv.width % pool.head_dim == 0 && heads % pool.num_kv_heads == 0, "qkv has ", qkv.width,
          " columns; they must be q | k | v with ", pool.num_kv_heads, " kv heads of ", pool.head_dim,
          " and a multiple of as many q heads");
  check_axis("qkv", qkv, Axis::Tokens);
  return heads;
}

// Every row's q against all keys up to its own, and its weights times as many values; K and V are read once a request.
Work attention_work(const BatchView& batch, int64_t q_width, double kv_bytes_per_token) {
  double pairs = 0, keys = 0;
  for (int64_t i = 0; i < batch.num_reqs; ++i) {
    const double rows = batch.query_start_loc[i + 1] - batch.query_start_loc[i];
    const double before = batch.seq_lens[i] - rows;
    pairs += rows * before + rows * (rows + 1) / 2;
    keys += batch.seq_lens[i];
  }
  return {4 * pairs * static_cast<double>(q_width), 0, keys * kv_bytes_per_token};
}

double kv_bytes_per_token(const KVPool& pool) {
  const int64_t tokens = pool.num_layers * pool.num_blocks * pool.block_size;
  return static_cast<double>(pool.total_bytes()) / static_cast<double>(tokens);
}

}  // namespace

Op embed_op(const PackedWeight& table, const Activation& out) {
  require(!table.gated, "linear and embed need a weight made by pack_linear");
  check_axis("out", out, Axis::Tokens);
  check_width("out", out, table.in);
  Op op{join("embed ", table.in), {}, {}, no_work};
  op.check = [&table, out](const BatchView& batch) {
    require(batch.max_input_id < table.out, "input_ids has ", batch.max_input_id, "; the vocabulary ends at ",
            table.out - 1);
    check_rows(out, batch);
  };
  op.run = [&table, out](Context& context, const BatchView& batch) {
    embed(context, batch.input_ids, batch.num_tokens, table, out.data);
  };
  return op;
}

Op rms_norm_op(const Activation& x, const NormWeight& weight, float eps, const Activation& out) {
  const auto width = static_cast<int64_t>(weight.shape(0));
  require(width > 0, "rms_norm needs at least one column");
  check_same_axis(x, out);
  check_width("x", x, width);
  check_width("out", out, width);
  Op op{join("rms_norm ", width), rows_check({x, out}), {}, no_work};
  op.run = [=, weights = weight.data()](Context& context, const BatchView& batch) {
    rms_norm(context, x.data, x.rows(batch), width, weights, eps, out.data);
  };
  return op;
}

Op linear_op(const Activation& x, const PackedWeight& w, const Activation& out, bool accumulate) {
  check_product(x, w, false, out);
  Op op{join("linear ", w.in, " to ", w.out), rows_check({x, out}), {}, product_work(x, w)};
  op.run = [x, &w, out, accumulate](Context& context, const BatchView& batch) {
    linear(context, x.data, x.rows(batch), w, out.data, accumulate);
  };
  return op;
}

Op gated_linear_op(const Activation& x, const PackedWeight& w, GateActivation activation, const Activation& out) {
  check_product(x, w, true, out);
  Op op{join("gated_linear ", w.in, " to ", w.out), rows_check({x, out}), {}, product_work(x, w)};
  op.run = [x, &w, activation, out](Context& context, const BatchView& batch) {
    gated_linear(context, x.data, x.rows(batch), w, activation, out.data);
  };
  return op;
}

Op gather_op(const Activation& x, const Activation& out) {
  check_axis("x", x, Axis::Tokens);
  check_axis("out", out, Axis::Logits);
  check_width("out", out, x.width);
  Op op{join("gather_logits_rows ", x.width), {}, {}, no_work};
  op.check = [x, out](const BatchView& batch) {
    check_rows(x, batch);
    check_rows(out, batch);
  };
  op.run = [x, out](Context& context, const BatchView& batch) {
    gather_rows(context, x.data, batch.logits_indices, batch.num_logits, x.width, out.data);
  };
  return op;
}

Op rope_and_store_op(const Activation& qkv, const RopeTables& rope, KVPool& pool, int64_t layer) {
  const int64_t heads = q_heads(qkv, pool);
  check_layer(pool, layer);
  require(rope.half * 2 == pool.head_dim, "the rope tables are for another head_dim than the KV pool");
  Op op{join("rope_and_store ", qkv.width), {}, {}, no_work};
  op.check = [qkv, &rope, &pool](const BatchView& batch) {
    require(batch.max_seq_len <= rope.max_positions, "the step reaches position ", batch.max_seq_len - 1,
            "; the rope tables end at ", rope.max_positions - 1, " (max_model_len)");
    require(batch.max_slot < pool.num_blocks * pool.block_size, "slot_mapping has ", batch.max_slot,
            ", outside the KV pool of ", pool.num_blocks * pool.block_size, " slots");
    check_rows(qkv, batch);
  };
  op.run = [=, &rope, &pool](Context& context, const BatchView& batch) {
    rope_and_store(context, batch, qkv.data, heads, rope.cos.data(), rope.sin.data(), pool, layer);
  };
  return op;
}

Op attention_op(const Activation& qkv, const KVPool& pool, int64_t layer, float scale, const Activation& out) {
  const int64_t heads = q_heads(qkv, pool), q_width = heads * pool.head_dim;
  check_layer(pool, layer);
  check_axis("out", out, Axis::Tokens);
  check_width("out", out, q_width);
  Op op{join("attention ", heads, " x ", pool.head_dim), {}, {}, {}};
  op.check = [qkv, &pool, out](const BatchView& batch) {
    require(batch.max_block_id < pool.num_blocks, "block_tables has block ", batch.max_block_id, "; the KV pool has ",
            pool.num_blocks);
    require(batch.max_seq_len <= batch.max_blocks * pool.block_size, "seq_lens has ", batch.max_seq_len,
            ", more than a row of block_tables holds");
    check_rows(qkv, batch);
    check_rows(out, batch);
  };
  op.run = [=, &pool](Context& context, const BatchView& batch) {
    attention(context, batch, qkv.data, heads, pool, layer, scale, out.data);
  };
  op.work = [q_width, bytes = kv_bytes_per_token(pool)](const BatchView& batch) {
    return attention_work(batch, q_width, bytes);
  };
  return op;
}

}  // namespace chairlift
