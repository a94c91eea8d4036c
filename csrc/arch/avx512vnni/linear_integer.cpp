// Linear kernels of the integer layouts (kernels/packed_weight.h).
#include "arch/avx512vnni/integer_layouts.h"
#include "arch/avx512vnni/linear.h"
#include "arch/avx512vnni/linear_tiles.h"

namespace chairlift::avx512vnni {

void panels_int4(const PanelTask& task) { panels<Int4>(task); }
void panels_int8(const PanelTask& task) { panels<Int8>(task); }

}  // namespace chairlift::avx512vnni
