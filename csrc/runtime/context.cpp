#include "runtime/context.h"

#include <stdexcept>

#include "runtime/cpu_features.h"

namespace chairlift {
namespace {

constexpr int kMaxThreads = 1024;

KernelTable build_generic_table() {
  KernelTable table;
  table.isa = "generic";
  register_generic_linear(table);
  register_generic_integer(table);
  register_generic_step(table);
  return table;
}

const KernelTable& generic_table() {
  static const KernelTable table = build_generic_table();
  return table;
}

#ifdef CHAIRLIFT_HAVE_X86
KernelTable build_avx2_table() {
  KernelTable table = generic_table();
  table.isa = "avx2";
  register_avx2_linear(table);
  register_avx2_step(table);
  return table;
}

// What AVX-512 does no faster is inherited.
KernelTable build_avx512_table() {
  KernelTable table = build_avx2_table();
  table.isa = "avx512";
  register_avx512_linear(table);
  register_avx512_attention(table.step);
  return table;
}

const KernelTable* avx2_table() {
  if (!cpu_has_avx2()) return nullptr;
  static const KernelTable table = build_avx2_table();
  return &table;
}

const KernelTable* avx512_table() {
  if (!cpu_has_avx512()) return nullptr;
  static const KernelTable table = build_avx512_table();
  return &table;
}
#else
const KernelTable* avx2_table() { return nullptr; }
const KernelTable* avx512_table() { return nullptr; }
#endif

const KernelTable& required(const KernelTable* table, const char* isa, const char* features) {
  if (table != nullptr) return *table;
  throw std::invalid_argument("isa is \"" + std::string(isa) + "\" but this processor or system lacks " + features);
}

const KernelTable& choose_table(const std::string& isa) {
  if (isa == "generic") return generic_table();
  if (isa == "avx2") return required(avx2_table(), "avx2", "AVX2, FMA or F16C");
  if (isa == "avx512") return required(avx512_table(), "avx512", "AVX-512 F, BW, VL or DQ");
  if (isa != "auto") {
    throw std::invalid_argument("isa is \"" + isa + "\"; it must be \"auto\", \"generic\", \"avx2\" or \"avx512\"");
  }
  if (const KernelTable* table = avx512_table()) return *table;
  if (const KernelTable* table = avx2_table()) return *table;
  return generic_table();
}

int checked_threads(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("num_threads is " + std::to_string(num_threads) + "; it must be between 1 and " +
                                std::to_string(kMaxThreads));
  }
  return num_threads;
}

}  // namespace

Context::Context(int num_threads, const std::string& isa)
    : kernels_(&choose_table(isa)), pool_(checked_threads(num_threads)) {}

}  // namespace chairlift
