#include "arch/kernel_table.h"

namespace chairlift {

void register_generic_step(KernelTable& table) {
  register_generic_attention(table.step);
  register_generic_rows(table.step);
  register_generic_sampling(table.step);
}

}  // namespace chairlift
