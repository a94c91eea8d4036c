#include "runtime/cpu_features.h"

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace chairlift {
namespace {

#if defined(__x86_64__)

// Bits of CPUID (leaf, subleaf, register) and of XCR0, the states that the operating system saves. Intel SDM, volume 1,
// chapters 13 and 14, and volume 2, CPUID.
struct Bit {
  const char* name;
  uint32_t leaf, subleaf;
  int reg;  // 0 eax, 1 ebx, 2 ecx, 3 edx
  int bit;
  uint64_t state;
};

constexpr uint64_t kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
constexpr int kTileState = 18;

constexpr Bit kBits[] = {
    {"fma", 1, 0, 2, 12, kYmm},          {"f16c", 1, 0, 2, 29, kYmm},        {"avx2", 7, 0, 1, 5, kYmm},
    {"avx_vnni", 7, 1, 0, 4, kYmm},      {"avx512f", 7, 0, 1, 16, kZmm},     {"avx512dq", 7, 0, 1, 17, kZmm},
    {"avx512bw", 7, 0, 1, 30, kZmm},     {"avx512vl", 7, 0, 1, 31, kZmm},    {"avx512_vnni", 7, 0, 2, 11, kZmm},
    {"avx512_bf16", 7, 1, 0, 5, kZmm},   {"amx_tile", 7, 0, 3, 24, kTiles},  {"amx_int8", 7, 0, 3, 25, kTiles},
};

uint64_t saved_states() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || (ecx & bit_OSXSAVE) == 0) return 0;
  asm volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (static_cast<uint64_t>(edx) << 32) | eax;
}

bool is_found(const Bit& bit) {
  unsigned regs[4] = {};
  if (!__get_cpuid_count(bit.leaf, bit.subleaf, &regs[0], &regs[1], &regs[2], &regs[3])) return false;
  return ((regs[bit.reg] >> bit.bit) & 1) != 0 && (saved_states() & bit.state) == bit.state;
}

#elif defined(__aarch64__)

struct Bit {
  const char* name;
  uint64_t mask;
};

// Bits of AT_HWCAP, and of AT_HWCAP2 in the second list: arch/arm64/include/uapi/asm/hwcap.h of Linux.
constexpr Bit kBits[] = {{"asimd", uint64_t{1} << 1}, {"asimddp", uint64_t{1} << 20}};
constexpr Bit kBits2[] = {{"i8mm", uint64_t{1} << 13}};

#endif

bool all_of(std::initializer_list<const char*> names) {
  const std::vector<CpuFeature> features = cpu_features();
  for (const char* name : names) {
    bool found = false;
    for (const CpuFeature& feature : features) found |= feature.found && std::strcmp(feature.name, name) == 0;
    if (!found) return false;
  }
  return true;
}

// Processes that never use tiles don't pay for saving them, so Linux hands them out on request only.
bool may_use_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, asm/prctl.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileState) == 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<CpuFeature> cpu_features() {
  std::vector<CpuFeature> features;
#if defined(__x86_64__)
  for (const Bit& bit : kBits) features.push_back({bit.name, is_found(bit)});
#elif defined(__aarch64__) && defined(__linux__)
  for (const Bit& bit : kBits) features.push_back({bit.name, (getauxval(AT_HWCAP) & bit.mask) != 0});
  for (const Bit& bit : kBits2) features.push_back({bit.name, (getauxval(AT_HWCAP2) & bit.mask) != 0});
#elif defined(__aarch64__)
  features.push_back({"asimd", true});  // part of every AArch64 with floating point
#endif
  return features;
}

bool cpu_has_avx2() { return all_of({"avx2", "fma", "f16c"}); }

bool cpu_has_avx512() { return cpu_has_avx2() && all_of({"avx512f", "avx512bw", "avx512vl", "avx512dq"}); }

bool cpu_has_avx512_vnni() { return cpu_has_avx512() && all_of({"avx512_vnni"}); }

bool cpu_has_avx_vnni() { return cpu_has_avx2() && all_of({"avx_vnni"}); }

bool cpu_has_amx_int8() { return cpu_has_avx512_vnni() && all_of({"amx_tile", "amx_int8"}) && may_use_tiles(); }

bool cpu_has_neon() { return all_of({"asimd"}); }

bool cpu_has_neon_dotprod() { return all_of({"asimd", "asimddp"}); }

}  // namespace chairlift
