#include "arch/neon/linear.h"

namespace chairlift {

void register_neon_linear(KernelTable& table) {
  table.linear.origin = table.linear.integer_origin = "neon";
  table.linear.panels[static_cast<int>(Layout::Group4)] = neon::panels_group4;
  table.linear.panels[static_cast<int>(Layout::Group8)] = neon::panels_group8;
  table.linear.panels[static_cast<int>(Layout::F16)] = neon::panels_f16;
  table.linear.panels[static_cast<int>(Layout::BF16)] = neon::panels_bf16;
  table.linear.panels[static_cast<int>(Layout::F32)] = neon::panels_f32;
  table.linear.panels[static_cast<int>(Layout::Int4)] = neon::panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = neon::panels_int8;
  table.linear.quantise = neon::quantise;
  table.linear.gate[static_cast<int>(GateActivation::Silu)] = neon::gate_silu;
  table.linear.gate[static_cast<int>(GateActivation::GeluTanh)] = neon::gate_gelu_tanh;
  table.probe.fma_peak = neon::fma_peak;
  table.probe.int8_peak = neon::int8_peak;
  table.probe.stream = neon::stream;
}

}  // namespace chairlift
