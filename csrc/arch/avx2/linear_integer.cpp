// Linear kernels of the integer layouts (kernels/packed_weight.h).
#include "arch/avx2/integer_tiles.h"
#include "arch/avx2/linear.h"

namespace chairlift::avx2 {

void panels_int4(const PanelTask& task) { panels<PairDot, Int4>(task); }

// Products with weights of 8 bits would overflow 16 bits.
void panels_int8(const PanelTask& task) { panels<PairDot, Int8Halves>(task); }

}  // namespace chairlift::avx2
