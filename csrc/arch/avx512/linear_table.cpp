#include "arch/avx512/linear.h"

namespace chairlift {

void register_avx512_linear(KernelTable& table) {
  table.linear.origin = "avx512";
  table.linear.panels[static_cast<int>(Layout::Group4)] = avx512::panels_group4;
  table.linear.panels[static_cast<int>(Layout::Group8)] = avx512::panels_group8;
  table.linear.panels[static_cast<int>(Layout::F16)] = avx512::panels_f16;
  table.linear.panels[static_cast<int>(Layout::BF16)] = avx512::panels_bf16;
  table.linear.panels[static_cast<int>(Layout::F32)] = avx512::panels_f32;
  table.linear.gate[static_cast<int>(GateActivation::Silu)] = avx512::gate_silu;
  table.linear.gate[static_cast<int>(GateActivation::GeluTanh)] = avx512::gate_gelu_tanh;
  table.probe.fma_peak = avx512::fma_peak;
  table.probe.stream = avx512::stream;
}

}  // namespace chairlift
