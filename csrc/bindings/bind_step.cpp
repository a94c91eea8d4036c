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
  nb::enum_<KVDtype>(m, "KVDtype")
      .value("f16", KVDtype::F16)
      .value("f32", KVDtype::F32)
      .value("int8", KVDtype::Int8);
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
  m.def("copy_blocks", run_copy_blocks, nb::arg("kv"), nb::arg("pairs"), "Copy blocks (from, to) in every layer.");
  m.def("sample", run_sample, nb::arg("context"), nb::arg("batch"), nb::arg("logits").noconvert(), nb::arg("request"),
        nb::arg("token_ids").noconvert(), nb::arg("logprobs").noconvert(), nb::arg("ranks").noconvert(),
        nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert(),
        "Draw or score the entries of a SampleBatch into the result arrays.");
}

}  // namespace chairlift
