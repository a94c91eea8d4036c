// The kernels that have a version per instruction set. A table starts with every generic kernel (kernels/*_generic.cpp)
// and each arch/<isa> replaces what it does faster, with the same bits.
//
// Files under arch/ see only this header and plain-data headers: no std templates, internal linkage, or the linker
// may keep an AVX copy of a shared inline function for generic code.
#pragma once

#include <cstdint>

#include "chairlift/ops.h"
#include "kernels/step_kernels.h"

namespace chairlift {

// -- linear (kernels/linear.cpp) -----------------------------------------------------------------------------------

// How a panel of 16 outputs stores its weights; see kernels/packed_weight.h.
enum class Layout : int { Group4, Group8, F16, BF16, F32, Int4, Int8 };
constexpr int kNumLayouts = 7;

// Whether a layout is multiplied with activations rounded to 8 bits.
constexpr bool is_integer(Layout layout) { return layout == Layout::Int4 || layout == Layout::Int8; }

// 32 activations of a row as 8-bit integers: x = scale * q, nearly. The 48 bytes are one group for every kernel.
struct QuantGroup {
  float scale;       // largest |x| / 127
  float scaled_sum;  // scale * sum of q
  int32_t bias;      // -128 * sum of q: takes back what 128 too much in every unsigned 8-bit weight adds
  int32_t unused;
  int8_t q[32];  // -127..127, to nearest even
};

// Dot products of all rows with a few adjacent panels, w[n, k] of output n = 16 * p + j.
//
// Float layouts: acc[p][r][j] = sum over k ascending of x[r, k] * w[n, k], one fma chain each, starting from 0.
// Integer layouts, group by group of 32 k ascending, starting from 0:
//   dot = sum over the group of q[r, k] * w's integer, exact
//   acc = fma(float(dot), scale of w * scale of x, acc);  Int4 also: acc = fma(min of w, scaled_sum of x, acc)
struct PanelTask {
  const float* x = nullptr;          // [rows, in], of float layouts
  const QuantGroup* xq = nullptr;    // [rows, in / 32], of integer layouts
  int64_t x_stride = 0;              // floats or groups between rows
  int64_t rows = 0;
  int64_t in = 0;
  const uint8_t* panels = nullptr;  // [num_panels, panel_bytes], 64-byte aligned
  int64_t panel_bytes = 0;
  int64_t num_panels = 0;
  const uint8_t* next_panels = nullptr;  // what this thread will probably read next: a hint to fetch ahead
  float* acc = nullptr;  // [num_panels, rows, 16], 64-byte aligned
};
using PanelKernel = void (*)(const PanelTask&);

// Rounds 32 * num_groups activations; see QuantGroup. A group with a value that is not finite gets scale NaN and q 0,
// one whose largest value is below 2^-100 scale 0 and q 0.
using QuantiseKernel = void (*)(const float* x, int64_t num_groups, QuantGroup* out);

// y[i] = act(gate[i]) * up[i] for n values.
using GateKernel = void (*)(const float* gate, const float* up, int64_t n, float* y);

// Each group of kernels says which directory under arch/ it came from ("generic" for kernels/), set where it is
// registered: what `chairlift env` reports.
struct LinearKernels {
  const char* origin = "";          // of panels of float layouts, and gates
  const char* integer_origin = "";  // of panels of integer layouts, and quantise
  PanelKernel panels[kNumLayouts] = {};
  QuantiseKernel quantise = nullptr;
  GateKernel gate[2] = {};  // by GateActivation
};

// -- probes of the machine's limits (kernels/probe.cpp) ------------------------------------------------------------

struct ProbeKernels {
  // Runs `iterations` times 16 independent fma chains at full vector width; returns the fmas done (scalar count).
  int64_t (*fma_peak)(int64_t iterations, float* sink) = nullptr;
  // The same of 8-bit products summed in integers, by the instructions of the integer layouts; returns the products.
  int64_t (*int8_peak)(int64_t iterations, int32_t* sink) = nullptr;
  // Sums n floats at full width.
  float (*stream)(const float* data, int64_t n) = nullptr;
};

struct KernelTable {
  const char* isa = "";
  LinearKernels linear;
  ProbeKernels probe;
  StepKernels step;
};

void register_generic_linear(KernelTable&);  // kernels/linear_generic.cpp
void register_generic_integer(KernelTable&);  // kernels/integer_generic.cpp
void register_generic_step(KernelTable&);    // kernels/step_table.cpp
void register_avx2_linear(KernelTable&);     // arch/avx2/linear_table.cpp
void register_avx2_step(KernelTable&);       // arch/avx2/step_table.cpp
void register_avxvnni_linear(KernelTable&);  // arch/avxvnni/linear_integer.cpp
void register_avx512_linear(KernelTable&);   // arch/avx512/linear_table.cpp
void register_avx512vnni_linear(KernelTable&);  // arch/avx512vnni/linear_table.cpp
void register_amx_linear(KernelTable&);      // arch/amx/linear_integer.cpp
void register_neon_linear(KernelTable&);     // arch/neon/linear_table.cpp
void register_neondot_linear(KernelTable&);  // arch/neondot/linear_integer.cpp

}  // namespace chairlift
