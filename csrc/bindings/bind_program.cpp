#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/step_arrays.h"
#include "bindings/step_ops.h"
#include "runtime/context.h"

namespace nb = nanobind;

namespace chairlift {
namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// An activation and the numpy array that it lies in.
struct ArrayActivation {
  Activation activation;
  nb::object array;
};

void make_activation(ArrayActivation* self, Axis axis, nb::object array) {
  Matrix matrix;
  require(nb::try_cast(array, matrix, false), "an activation needs a C-contiguous, writable f32 array of two dimensions");
  const auto rows = static_cast<int64_t>(matrix.shape(0)), width = static_cast<int64_t>(matrix.shape(1));
  new (self) ArrayActivation{{axis, rows, width, matrix.data()}, std::move(array)};
}

void make_program(Program* self, const nb::tuple& ops) {
  std::vector<Op> recorded;
  for (const nb::handle op : ops) recorded.push_back(nb::cast<const Op&>(op));
  new (self) Program(std::move(recorded));
}

void run_op(const Op& op, Context& context, const Batch& batch) {
  nb::gil_scoped_release release;
  op.check(batch.view);
  op.run(context, batch.view);
}

void run_program(const Program& program, Context& context, const Batch& batch) {
  nb::gil_scoped_release release;
  program.run(context, batch.view);
}

std::vector<std::tuple<double, double>> profile_program(const Program& program, Context& context, const Batch& batch) {
  nb::gil_scoped_release release;
  std::vector<std::tuple<double, double>> times;
  for (const OpTime& time : program.profile(context, batch.view)) times.emplace_back(time.seconds, time.busy_seconds);
  return times;
}

std::vector<std::tuple<std::string, double, double, double>> program_work(const Program& program, const Batch& batch) {
  program.check(batch.view);
  std::vector<std::tuple<std::string, double, double, double>> rows;
  for (const Op& op : program.ops()) {
    const Work work = op.work(batch.view);
    rows.emplace_back(op.name, work.flops, work.int8_ops, work.bytes);
  }
  return rows;
}

using Array = const ArrayActivation&;

// What an op points into lives as long as the op does.
void bind_ops(nb::class_<Op>& op) {
  using nb::keep_alive;
  op.def_static(
      "embed", [](const PackedWeight& table, Array out) { return embed_op(table, out.activation); },
      keep_alive<0, 1>(), keep_alive<0, 2>(), nb::arg("table"), nb::arg("out"));
  op.def_static(
      "rms_norm",
      [](Array x, const NormWeight& weight, float eps, Array out) {
        return rms_norm_op(x.activation, weight, eps, out.activation);
      },
      keep_alive<0, 1>(), keep_alive<0, 2>(), keep_alive<0, 4>(), nb::arg("x"), nb::arg("weight").noconvert(),
      nb::arg("eps"), nb::arg("out"));
  op.def_static(
      "linear",
      [](Array x, const PackedWeight& w, Array out, bool accumulate) {
        return linear_op(x.activation, w, out.activation, accumulate);
      },
      keep_alive<0, 1>(), keep_alive<0, 2>(), keep_alive<0, 3>(), nb::arg("x"), nb::arg("w"), nb::arg("out"),
      nb::arg("accumulate"));
  op.def_static(
      "gated_linear",
      [](Array x, const PackedWeight& w, GateActivation activation, Array out) {
        return gated_linear_op(x.activation, w, activation, out.activation);
      },
      keep_alive<0, 1>(), keep_alive<0, 2>(), keep_alive<0, 4>(), nb::arg("x"), nb::arg("w"), nb::arg("activation"),
      nb::arg("out"));
  op.def_static(
      "gather_logits_rows", [](Array x, Array out) { return gather_op(x.activation, out.activation); },
      keep_alive<0, 1>(), keep_alive<0, 2>(), nb::arg("x"), nb::arg("out"));
  op.def_static(
      "rope_and_store",
      [](Array qkv, const RopeTables& rope, KVPool& kv, int64_t layer) {
        return rope_and_store_op(qkv.activation, rope, kv, layer);
      },
      keep_alive<0, 1>(), keep_alive<0, 2>(), keep_alive<0, 3>(), nb::arg("qkv"), nb::arg("rope"), nb::arg("kv"),
      nb::arg("layer"));
  op.def_static(
      "attention",
      [](Array qkv, const KVPool& kv, int64_t layer, float scale, Array out) {
        return attention_op(qkv.activation, kv, layer, scale, out.activation);
      },
      keep_alive<0, 1>(), keep_alive<0, 2>(), keep_alive<0, 5>(), nb::arg("qkv"), nb::arg("kv"), nb::arg("layer"),
      nb::arg("scale"), nb::arg("out"));
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::enum_<Axis>(m, "Axis").value("tokens", Axis::Tokens).value("logits", Axis::Logits);
  nb::class_<ArrayActivation>(m, "Activation", "f32 [largest step of the axis, width]; borrows the array.")
      .def("__init__", make_activation, nb::arg("axis"), nb::arg("array"))
      .def_prop_ro("axis", [](Array self) { return self.activation.axis; })
      .def_prop_ro("array", [](Array self) { return self.array; });
  nb::class_<Op> op(m, "Op", "An operator bound to everything but the step. ValueError when shapes don't fit together.");
  op.def("run", run_op, nb::arg("context"), nb::arg("batch"), "ValueError for a step that it can't take.");
  bind_ops(op);
  nb::class_<Program>(m, "Program", "Operators, to be run in order for any step.")
      .def("__init__", make_program, nb::keep_alive<1, 2>(), nb::arg("ops"))
      .def("run", run_program, nb::arg("context"), nb::arg("batch"),
           "ValueError, before anything is computed, for a step that an op can't take.")
      .def("profile", profile_program, nb::arg("context"), nb::arg("batch"),
           "As run; returns (seconds, busy seconds of all threads) of each op.")
      .def("work", program_work, nb::arg("batch"), "(name, FLOPs, int8 operations, bytes) of each op; computes nothing.");
}

}  // namespace chairlift
