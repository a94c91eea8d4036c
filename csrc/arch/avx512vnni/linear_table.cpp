#include "arch/avx512vnni/linear.h"

namespace chairlift {

void register_avx512vnni_linear(KernelTable& table) {
  table.linear.integer_origin = "avx512vnni";
  table.linear.panels[static_cast<int>(Layout::Int4)] = avx512vnni::panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = avx512vnni::panels_int8;
  table.linear.quantise = avx512vnni::quantise;
  table.probe.int8_peak = avx512vnni::int8_peak;
}

}  // namespace chairlift
