#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/checks.h"
#include "bindings/tensor_part.h"
#include "kernels/probe.h"
#include "runtime/context.h"

namespace nb = nanobind;

namespace chairlift {
namespace {

using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PackedWeight pack_parts(Context& context, const std::vector<Part>& parts, ComputeDtype compute) {
  std::vector<TensorView> views;
  for (const Part& part : parts) views.push_back(tensor_view(part));
  nb::gil_scoped_release release;
  return pack_linear(context, views, compute);
}

PackedWeight pack_gated(Context& context, const Part& gate, const Part& up, ComputeDtype compute) {
  const TensorView gate_view = tensor_view(gate), up_view = tensor_view(up);
  nb::gil_scoped_release release;
  return pack_gated_linear(context, gate_view, up_view, compute);
}

void check_op(const ConstMatrix& x, int64_t rows, const PackedWeight& w, bool gated, const Matrix& y) {
  require(rows >= 0, "rows is ", rows, "; it must not be negative");
  require(w.gated == gated, gated ? "gated_linear needs a weight made by pack_gated_linear"
                                  : "linear and embed need a weight made by pack_linear");
  check_matrix("x", x, rows, w.in);
  check_matrix("y", y, rows, w.out);
}

void run_linear(Context& context, const ConstMatrix& x, int64_t rows, const PackedWeight& w, const Matrix& y,
                bool accumulate) {
  check_op(x, rows, w, false, y);
  nb::gil_scoped_release release;
  linear(context, x.data(), rows, w, y.data(), accumulate);
}

void run_gated_linear(Context& context, const ConstMatrix& x, int64_t rows, const PackedWeight& w,
                      GateActivation activation, const Matrix& y) {
  check_op(x, rows, w, true, y);
  nb::gil_scoped_release release;
  gated_linear(context, x.data(), rows, w, activation, y.data());
}

void run_embed(Context& context, const Ids& ids, const PackedWeight& w, const Matrix& y) {
  const int64_t num_ids = static_cast<int64_t>(ids.shape(0));
  require(!w.gated, "linear and embed need a weight made by pack_linear");
  check_matrix("y", y, num_ids, w.in);
  for (int64_t i = 0; i < num_ids; ++i) {
    const int32_t id = ids.data()[i];
    if (id < 0 || id >= w.out) {
      throw nb::index_error(("token id " + std::to_string(id) + " is outside the table of " + std::to_string(w.out) +
                             " rows").c_str());
    }
  }
  nb::gil_scoped_release release;
  embed(context, ids.data(), num_ids, w, y.data());
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::enum_<TensorType>(m, "TensorType")
      .value("F32", TensorType::F32)
      .value("F16", TensorType::F16)
      .value("BF16", TensorType::BF16)
      .value("Q4_0", TensorType::Q4_0)
      .value("Q4_1", TensorType::Q4_1)
      .value("Q8_0", TensorType::Q8_0);
  nb::enum_<GateActivation>(m, "GateActivation")
      .value("silu", GateActivation::Silu)
      .value("gelu_tanh", GateActivation::GeluTanh);
  nb::enum_<ComputeDtype>(m, "ComputeDtype").value("f32", ComputeDtype::F32).value("int8", ComputeDtype::Int8);
  nb::class_<PackedWeight>(m, "PackedWeight", "Weights [out, in] in a kernel layout.")
      .def_ro("out", &PackedWeight::out)
      .def_ro("in_", &PackedWeight::in)
      .def_ro("gated", &PackedWeight::gated)
      .def_prop_ro("nbytes", &PackedWeight::bytes);

  m.def("pack_linear", pack_parts, nb::arg("context"), nb::arg("parts"), nb::arg("compute") = ComputeDtype::F32,
        "Pack parts [(type, in, uint8 [out, row_bytes])], stacked along out. ValueError if they don't fit together.");
  m.def("pack_gated_linear", pack_gated, nb::arg("context"), nb::arg("gate"), nb::arg("up"),
        nb::arg("compute") = ComputeDtype::F32,
        "Pack gate and up, each (type, in, uint8 [out, row_bytes]).");
  m.def("linear", run_linear, nb::arg("context"), nb::arg("x").noconvert(), nb::arg("rows"), nb::arg("w"),
        nb::arg("y").noconvert(), nb::arg("accumulate") = false,
        "y[:rows] = x[:rows] @ w.T, or += with accumulate. x: f32 [>= rows, in], y: f32 [>= rows, out].");
  m.def("gated_linear", run_gated_linear, nb::arg("context"), nb::arg("x").noconvert(), nb::arg("rows"), nb::arg("w"),
        nb::arg("activation"), nb::arg("y").noconvert(),
        "y[:rows] = act(x @ gate.T) * (x @ up.T). x: f32 [>= rows, in], y: f32 [>= rows, out].");
  m.def("embed", run_embed, nb::arg("context"), nb::arg("ids").noconvert(), nb::arg("w"), nb::arg("y").noconvert(),
        "y[i] = row ids[i] of w, dequantised. IndexError for an id outside the table.");
  m.def("fma_peak", probe_fma_peak, nb::arg("context"), nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>(),
        "Most fused multiply-adds a second that this context's threads and instruction set reach.");
  m.def("int8_peak", probe_int8_peak, nb::arg("context"), nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>(), "The same of products of 8-bit integers.");
  m.def("stream", probe_stream, nb::arg("context"), nb::arg("bytes"), nb::arg("passes"),
        nb::call_guard<nb::gil_scoped_release>(), "Bytes a second read from a buffer of `bytes` by all threads.");
}

}  // namespace chairlift
