#include "bindings/bindings.h"

NB_MODULE(_native, m) {
  m.doc() = "Chairlift's native kernels. Only chairlift/ops/cpu.py may import this module.";
  chairlift::bind_context(m);
  chairlift::bind_linear(m);
  chairlift::bind_quantize(m);
  chairlift::bind_step(m);
  chairlift::bind_program(m);
}
