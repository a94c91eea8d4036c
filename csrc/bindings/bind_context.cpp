#include <nanobind/stl/string.h>

#include "bindings/bindings.h"
#include "runtime/context.h"
#include "runtime/cpu_features.h"
#include "runtime/isas.h"

namespace nb = nanobind;

namespace chairlift {
namespace {

nb::dict kernel_origins(const Context& context) {
  const KernelTable& table = context.kernels();
  nb::dict origins;
  origins["linear f32"] = table.linear.origin;
  origins["linear int8"] = table.linear.integer_origin;
  origins["attention"] = table.step.attention.origin;
  origins["rows"] = table.step.row.origin;
  origins["sampling"] = table.step.sampling.origin;
  return origins;
}

nb::list list_cpu_features() {
  nb::list list;
  for (const CpuFeature& feature : cpu_features()) list.append(nb::make_tuple(feature.name, feature.found));
  return list;
}

nb::list list_isas() {
  nb::list list;
  for (const IsaInfo& isa : isas()) list.append(nb::make_tuple(isa.name, isa.features, isa.available));
  return list;
}

}  // namespace

void bind_context(nb::module_& m) {
  nb::class_<Context>(m, "Context", "Thread pool and kernels of one engine; several may live in one process.")
      .def(nb::init<int, const std::string&>(), nb::arg("num_threads"), nb::arg("isa") = "auto",
           nb::call_guard<nb::gil_scoped_release>(), "isa: \"auto\" or one of isas(); ValueError otherwise.")
      .def_prop_ro("num_threads", &Context::num_threads)
      .def_prop_ro("isa", [](const Context& context) { return context.kernels().isa; })
      .def_prop_ro("kernel_origins", kernel_origins);
  m.def("cpu_features", list_cpu_features, "(name, found) of what kernels for this kind of processor could use.");
  m.def("isas", list_isas, "(name, features it needs, available) of this build, in ascending order of preference.");
}

}  // namespace chairlift
