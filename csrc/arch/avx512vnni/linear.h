// The AVX-512 VNNI kernels of integer layouts; linear_table.cpp puts them into the table.
#pragma once

#include "arch/kernel_table.h"

namespace chairlift::avx512vnni {

void panels_int4(const PanelTask&);
void panels_int8(const PanelTask&);
void quantise(const float* x, int64_t num_groups, QuantGroup* out);
int64_t int8_peak(int64_t iterations, int32_t* sink);

}  // namespace chairlift::avx512vnni
