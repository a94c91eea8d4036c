#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/step_arrays.h"
#include "kernels/kv_pool.h"
#include "kernels/packed_weight.h"
#include "kernels/rope.h"
#include "runtime/context.h"

namespace nb = nanobind;

namespace chairlift {
namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_layer(const KVPool& pool, int64_t layer) {
  require(layer >= 0 && layer < pool.num_layers, "layer is ", layer, ", outside the ", pool.num_layers,
          " layers of the KV pool");
}

// Number of q heads of q | k | v columns that fit the pool.
template <typename Array>
int64_t q_heads(const Batch& batch, const Array& qkv, const KVPool& pool) {
  const auto columns = static_cast<int64_t>(qkv.shape(1));
  const int64_t heads = columns / pool.head_dim - 2 * pool.num_kv_heads;
  require(heads >= 1 && columns % pool.head_dim == 0 && heads % pool.num_kv_heads == 0, "qkv has ", columns,
          " columns; they must be q | k | v with ", pool.num_kv_heads, " kv heads of ", pool.head_dim,
          " and a multiple of as many q heads");
  check_matrix("qkv", qkv, batch.view.num_tokens, columns);
  return heads;
}

void run_rms_norm(Context& context, const Matrix<const float>& x, int64_t rows, const Vector<const float>& weight,
                  float eps, const Matrix<float>& y) {
  const auto width = static_cast<int64_t>(weight.shape(0));
  require(rows >= 0 && width > 0, "rms_norm needs at least one column and no negative number of rows");
  check_matrix("x", x, rows, width);
  check_matrix("y", y, rows, width);
  nb::gil_scoped_release release;
  rms_norm(context, x.data(), rows, width, weight.data(), eps, y.data());
}

void run_embed_tokens(Context& context, const Batch& batch, const PackedWeight& table, const Matrix<float>& out) {
  require(!table.gated, "embed_tokens needs a weight made by pack_linear");
  require(batch.max_input_id < table.out, "input_ids has ", batch.max_input_id, "; the vocabulary ends at ",
          table.out - 1);
  check_matrix("out", out, batch.view.num_tokens, table.in);
  nb::gil_scoped_release release;
  embed(context, batch.view.input_ids, batch.view.num_tokens, table, out.data());
}

void run_gather(Context& context, const Batch& batch, const Matrix<const float>& x, const Matrix<float>& out) {
  const auto width = static_cast<int64_t>(x.shape(1));
  check_matrix("x", x, batch.view.num_tokens, width);
  check_matrix("out", out, batch.view.num_logits, width);
  nb::gil_scoped_release release;
  gather_rows(context, x.data(), batch.view.logits_indices, batch.view.num_logits, width, out.data());
}

void run_rope_and_store(Context& context, const Batch& batch, const Matrix<float>& qkv, const RopeTables& rope,
                        KVPool& pool, int64_t layer) {
  const int64_t heads = q_heads(batch, qkv, pool);
  check_layer(pool, layer);
  require(rope.half * 2 == pool.head_dim, "the rope tables are for another head_dim than the KV pool");
  require(batch.max_seq_len <= rope.max_positions, "the step reaches position ", batch.max_seq_len - 1,
          "; the rope tables end at ", rope.max_positions - 1, " (max_model_len)");
  require(batch.max_slot < pool.num_blocks * pool.block_size, "slot_mapping has ", batch.max_slot,
          ", outside the KV pool of ", pool.num_blocks * pool.block_size, " slots");
  nb::gil_scoped_release release;
  rope_and_store(context, batch.view, qkv.data(), heads, rope.cos.data(), rope.sin.data(), pool, layer);
}

void run_attention(Context& context, const Batch& batch, const Matrix<const float>& qkv, const KVPool& pool,
                   int64_t layer, float scale, const Matrix<float>& out) {
  const int64_t heads = q_heads(batch, qkv, pool);
  check_layer(pool, layer);
  check_matrix("out", out, batch.view.num_tokens, heads * pool.head_dim);
  require(batch.max_block_id < pool.num_blocks, "block_tables has block ", batch.max_block_id, "; the KV pool has ",
          pool.num_blocks);
  require(batch.max_seq_len <= batch.view.max_blocks * pool.block_size, "seq_lens has ", batch.max_seq_len,
          ", more than a row of block_tables holds");
  nb::gil_scoped_release release;
  attention(context, batch.view, qkv.data(), heads, pool, layer, scale, out.data());
}

void run_copy_blocks(KVPool& pool, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
  for (const auto& [from, to] : pairs) {
    require(std::min(from, to) >= 0 && std::max(from, to) < pool.num_blocks, "block copy (", from, ", ", to,
            ") is outside the pool of ", pool.num_blocks, " blocks");
  }
  nb::gil_scoped_release release;
  for (const auto& [from, to] : pairs) pool.copy_block(from, to);
}

void run_sample(Context& context, const Batch& batch, const Matrix<const float>& logits, nb::handle request,
                const Vector<int32_t>& token_ids, const Vector<float>& logprobs, const Vector<int32_t>& ranks,
                const Matrix<int32_t>& top_ids, const Matrix<float>& top_logprobs) {
  const auto vocab = static_cast<int64_t>(logits.shape(1));
  require(vocab > 0, "logits have no column");
  check_matrix("logits", logits, batch.view.num_logits, vocab);
  std::vector<HostArray> arrays;
  SampleView view = read_sample_batch(request, batch.view.num_logits, vocab, arrays);
  view.max_logprobs = static_cast<int64_t>(top_ids.shape(1));
  for (int64_t i = 0; i < view.n; ++i) {
    require(view.num_logprobs[i] <= view.max_logprobs, "top_ids has fewer columns than num_logprobs asks for");
  }
  for (const size_t length : {token_ids.shape(0), logprobs.shape(0), ranks.shape(0)}) {
    require(static_cast<int64_t>(length) == view.n, "a result array has the wrong length");
  }
  check_matrix("top_ids", top_ids, view.n, view.max_logprobs);
  check_matrix("top_logprobs", top_logprobs, view.n, view.max_logprobs);
  view.token_ids = token_ids.data();
  view.logprobs = logprobs.data();
  view.ranks = ranks.data();
  view.top_ids = top_ids.data();
  view.top_logprobs = top_logprobs.data();
  nb::gil_scoped_release release;
  sample(context, logits.data(), vocab, view);
}

void make_rope(RopeTables* self, Context& context, int64_t head_dim, double base, int64_t max_positions,
               RopeScaling scaling, double factor, double low_freq_factor, double high_freq_factor,
               double original_max_positions, std::vector<double> freq_divisors) {
  const RopeSpec spec{head_dim,        base,
                      max_positions,   scaling,
                      factor,          low_freq_factor,
                      high_freq_factor, original_max_positions,
                      std::move(freq_divisors)};
  nb::gil_scoped_release release;
  new (self) RopeTables(context, spec);
}

using Table = nb::ndarray<nb::numpy, const float, nb::ndim<2>, nb::c_contig>;

Table table_view(const std::vector<float>& values, const RopeTables& rope) {
  return Table(values.data(), {static_cast<size_t>(rope.max_positions), static_cast<size_t>(rope.half)},
               nb::find(rope));
}

void bind_handles(nb::module_& m) {
  nb::enum_<KVDtype>(m, "KVDtype").value("f16", KVDtype::F16).value("f32", KVDtype::F32);
  nb::enum_<RopeScaling>(m, "RopeScaling")
      .value("none", RopeScaling::None)
      .value("linear", RopeScaling::Linear)
      .value("llama3", RopeScaling::Llama3);
  nb::class_<KVPool>(m, "KVPool", "The paged KV cache of all layers, backed lazily.")
      .def(nb::init<int64_t, int64_t, int64_t, int64_t, int64_t, KVDtype>(),
           nb::call_guard<nb::gil_scoped_release>(), nb::arg("num_layers"),
           nb::arg("num_blocks"), nb::arg("block_size"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
           nb::arg("dtype"), "ValueError for a shape that the kernels don't take, MemoryError for one too big.")
      .def_prop_ro("nbytes", &KVPool::total_bytes);
  nb::class_<RopeTables>(m, "RopeTables", "cos and sin of every position and pair.")
      .def("__init__", make_rope, nb::arg("context"), nb::arg("head_dim"), nb::arg("base"), nb::arg("max_positions"),
           nb::arg("scaling"), nb::arg("factor"), nb::arg("low_freq_factor"), nb::arg("high_freq_factor"),
           nb::arg("original_max_positions"), nb::arg("freq_divisors"), "ValueError for a spec out of range.")
      .def_prop_ro("cos", [](const RopeTables& rope) { return table_view(rope.cos, rope); })
      .def_prop_ro("sin", [](const RopeTables& rope) { return table_view(rope.sin, rope); });
  nb::class_<Batch>(m, "Batch", "A RaggedBatch, checked; borrows its arrays.")
      .def(nb::init<nb::handle, int64_t, int64_t>(), nb::arg("ragged"), nb::arg("max_num_tokens"),
           nb::arg("max_num_logits"), "ValueError naming the field that breaks a rule of RaggedBatch.")
      .def_prop_ro("num_tokens", [](const Batch& batch) { return batch.view.num_tokens; })
      .def_prop_ro("num_logits", [](const Batch& batch) { return batch.view.num_logits; });
}

}  // namespace

void bind_step(nb::module_& m) {
  bind_handles(m);
  m.def("rms_norm", run_rms_norm, nb::arg("context"), nb::arg("x").noconvert(), nb::arg("rows"),
        nb::arg("weight").noconvert(), nb::arg("eps"), nb::arg("y").noconvert(),
        "y[:rows] = rms_norm(x[:rows]) * weight. x, y: f32 [>= rows, width]; y may be x.");
  m.def("embed_tokens", run_embed_tokens, nb::arg("context"), nb::arg("batch"), nb::arg("table"),
        nb::arg("out").noconvert(), "out[t] = row input_ids[t] of the table. ValueError for an id outside it.");
  m.def("gather_rows", run_gather, nb::arg("context"), nb::arg("batch"), nb::arg("x").noconvert(),
        nb::arg("out").noconvert(), "out[i] = x[logits_indices[i]].");
  m.def("rope_and_store", run_rope_and_store, nb::arg("context"), nb::arg("batch"), nb::arg("qkv").noconvert(),
        nb::arg("rope"), nb::arg("kv"), nb::arg("layer"),
        "Rotate q and k in place; store k and v at slot_mapping. qkv: f32 [>= num_tokens, q | k | v].");
  m.def("attention", run_attention, nb::arg("context"), nb::arg("batch"), nb::arg("qkv").noconvert(), nb::arg("kv"),
        nb::arg("layer"), nb::arg("scale"), nb::arg("out").noconvert(),
        "Causal attention over the paged cache. out: f32 [>= num_tokens, q heads * head_dim].");
  m.def("copy_blocks", run_copy_blocks, nb::arg("kv"), nb::arg("pairs"), "Copy blocks (from, to) in every layer.");
  m.def("sample", run_sample, nb::arg("context"), nb::arg("batch"), nb::arg("logits").noconvert(), nb::arg("request"),
        nb::arg("token_ids").noconvert(), nb::arg("logprobs").noconvert(), nb::arg("ranks").noconvert(),
        nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert(),
        "Draw or score the entries of a SampleBatch into the result arrays.");
}

}  // namespace chairlift
