// The AVX2 linear kernels by layout; linear_table.cpp puts them into the table.
#pragma once

#include "arch/kernel_table.h"

namespace chairlift::avx2 {

void panels_group4(const PanelTask&);
void panels_group8(const PanelTask&);
void panels_f16(const PanelTask&);
void panels_bf16(const PanelTask&);
void panels_f32(const PanelTask&);
void panels_int4(const PanelTask&);
void panels_int8(const PanelTask&);
void quantise(const float* x, int64_t num_groups, QuantGroup* out);

void gate_silu(const float* gate, const float* up, int64_t n, float* y);
void gate_gelu_tanh(const float* gate, const float* up, int64_t n, float* y);

int64_t fma_peak(int64_t iterations, float* sink);
int64_t int8_peak(int64_t iterations, int32_t* sink);
float stream(const float* data, int64_t n);

}  // namespace chairlift::avx2
