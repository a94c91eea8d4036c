// One function per file of this folder; none of them does arithmetic, and every op releases the GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace chairlift {

void bind_context(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_step(nanobind::module_& m);
void bind_program(nanobind::module_& m);

}  // namespace chairlift
