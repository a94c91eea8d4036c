#include "arch/kernel_table.h"

namespace chairlift {

void register_avx2_step(KernelTable& table) {
  register_avx2_attention(table.step);
  register_avx2_rows(table.step);
  register_avx2_sampling(table.step);
}

}  // namespace chairlift
