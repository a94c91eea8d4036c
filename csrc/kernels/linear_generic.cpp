// The readable version of the linear kernels: any processor, the same bits as every other version.
#include <algorithm>

#include "arch/kernel_table.h"
#include "kernels/panel_weight.h"

namespace chairlift {
namespace {

constexpr int64_t kChunk = 128;  // k values dequantised at once, for all rows

template <Layout layout>
void dequantise(const uint8_t* panel, int64_t first_k, int64_t num_k, float* w) {
  for (int64_t k = 0; k < num_k; ++k) {
    for (int64_t j = 0; j < kPanelWidth; ++j) w[k * kPanelWidth + j] = panel_weight<layout>(panel, first_k + k, j);
  }
}

void accumulate_chunk(const float* x, const float* w, int64_t num_k, float* acc) {
  for (int64_t k = 0; k < num_k; ++k) {
    for (int64_t j = 0; j < kPanelWidth; ++j) acc[j] = fma_f32(x[k], w[k * kPanelWidth + j], acc[j]);
  }
}

template <Layout layout>
void panels(const PanelTask& task) {
  float w[kChunk * kPanelWidth];
  std::fill(task.acc, task.acc + task.num_panels * task.rows * kPanelWidth, 0.0f);
  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t k = 0; k < task.in; k += kChunk) {
      const int64_t num_k = std::min(kChunk, task.in - k);
      dequantise<layout>(task.panels + p * task.panel_bytes, k, num_k, w);
      for (int64_t r = 0; r < task.rows; ++r) {
        accumulate_chunk(task.x + r * task.x_stride + k, w, num_k, task.acc + (p * task.rows + r) * kPanelWidth);
      }
    }
  }
}

void gate_silu(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = silu_f32(gate[i]) * up[i];
}

void gate_gelu_tanh(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gelu_tanh_f32(gate[i]) * up[i];
}

int64_t fma_peak(int64_t iterations, float* sink) {
  float acc[16] = {};
  for (int64_t i = 0; i < iterations; ++i) {
    for (float& a : acc) a = fma_f32(a, 0.5f, 1.0f);
  }
  for (float a : acc) *sink += a;
  return iterations * 16;
}

float stream(const float* data, int64_t n) {
  float acc[16] = {};
  for (int64_t i = 0; i + 16 <= n; i += 16) {
    for (int64_t j = 0; j < 16; ++j) acc[j] += data[i + j];
  }
  float sum = 0.0f;
  for (float a : acc) sum += a;
  return sum;
}

}  // namespace

void register_generic_linear(KernelTable& table) {
  table.linear.origin = "generic";
  table.linear.panels[static_cast<int>(Layout::Group4)] = panels<Layout::Group4>;
  table.linear.panels[static_cast<int>(Layout::Group8)] = panels<Layout::Group8>;
  table.linear.panels[static_cast<int>(Layout::F16)] = panels<Layout::F16>;
  table.linear.panels[static_cast<int>(Layout::BF16)] = panels<Layout::BF16>;
  table.linear.panels[static_cast<int>(Layout::F32)] = panels<Layout::F32>;
  table.linear.gate[static_cast<int>(GateActivation::Silu)] = gate_silu;
  table.linear.gate[static_cast<int>(GateActivation::GeluTanh)] = gate_gelu_tanh;
  table.probe.fma_peak = fma_peak;
  table.probe.stream = stream;
}

}  // namespace chairlift
