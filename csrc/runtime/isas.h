// The instruction sets that have kernels of their own, and the kernels that each binds.
#pragma once

#include <string>
#include <vector>

#include "arch/kernel_table.h"

namespace chairlift {

struct IsaInfo {
  const char* name;
  const char* features;  // that it needs, in words
  bool available;        // on this processor and system
};

// Those of this build, in ascending order of preference.
std::vector<IsaInfo> isas();

// The kernels of one of them; of the last available one for "auto". Throws std::invalid_argument for a name that this
// build does not know and for features that the processor or the system lacks.
KernelTable kernel_table(const std::string& isa);

}  // namespace chairlift
