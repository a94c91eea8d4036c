// The kernels of integer layouts for 64-bit Arm with 8-bit dot products (SDOT).
#pragma once

#include "arch/kernel_table.h"

namespace chairlift::neondot {

void panels_int4(const PanelTask&);
void panels_int8(const PanelTask&);
int64_t int8_peak(int64_t iterations, int32_t* sink);

}  // namespace chairlift::neondot
