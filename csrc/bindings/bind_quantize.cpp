#include <nanobind/ndarray.h>

#include "bindings/bindings.h"
#include "bindings/checks.h"
#include "bindings/tensor_part.h"
#include "runtime/context.h"

namespace nb = nanobind;

namespace chairlift {
namespace {

using OutBytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void run_quantize_weight(Context& context, const Part& source, TensorType to, const OutBytes& out) {
  const TensorView view = tensor_view(source);
  check_matrix("out", out, view.out, row_bytes(to, view.in));
  nb::gil_scoped_release release;
  quantize_weight(context, view, to, out.data());
}

}  // namespace

void bind_quantize(nb::module_& m) {
  m.def("quantize_weight", run_quantize_weight, nb::arg("context"), nb::arg("source"), nb::arg("to"),
        nb::arg("out").noconvert(),
        "Round (type, in, uint8 [rows, row_bytes]) of floats to Q8_0 or Q4_1 blocks: out, uint8 [rows, row_bytes].");
}

}  // namespace chairlift
