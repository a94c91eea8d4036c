#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "runtime/context.h"

namespace nb = nanobind;

namespace chairlift {

void bind_context(nb::module_& m) {
  nb::class_<Context>(m, "Context", "Thread pool and kernels of one engine; several may live in one process.")
      .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "auto",
           nb::call_guard<nb::gil_scoped_release>(), "isa: \"auto\", \"generic\", \"avx2\" or \"avx512\"; ValueError otherwise.")
      .def_prop_ro("num_threads", &Context::num_threads)
      .def_prop_ro("isa", [](const Context& context) { return context.kernels().isa; });
}

}  // namespace chairlift
