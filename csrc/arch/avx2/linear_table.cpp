#include "arch/avx2/linear.h"

namespace chairlift {

void register_avx2_linear(KernelTable& table) {
  table.linear.origin = "avx2";
  table.linear.panels[static_cast<int>(Layout::Group4)] = avx2::panels_group4;
  table.linear.panels[static_cast<int>(Layout::Group8)] = avx2::panels_group8;
  table.linear.panels[static_cast<int>(Layout::F16)] = avx2::panels_f16;
  table.linear.panels[static_cast<int>(Layout::BF16)] = avx2::panels_bf16;
  table.linear.panels[static_cast<int>(Layout::F32)] = avx2::panels_f32;
  table.linear.integer_origin = "avx2";
  table.linear.panels[static_cast<int>(Layout::Int4)] = avx2::panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = avx2::panels_int8;
  table.linear.quantise = avx2::quantise;
  table.linear.gate[static_cast<int>(GateActivation::Silu)] = avx2::gate_silu;
  table.linear.gate[static_cast<int>(GateActivation::GeluTanh)] = avx2::gate_gelu_tanh;
  table.probe.fma_peak = avx2::fma_peak;
  table.probe.int8_peak = avx2::int8_peak;
  table.probe.stream = avx2::stream;
}

}  // namespace chairlift
