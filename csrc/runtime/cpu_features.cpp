#include "runtime/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace chairlift {

bool cpu_has_avx2() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  const bool f16c = (ecx & bit_F16C) != 0;
  // These two also check that the operating system saves the wide registers.
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

bool cpu_has_avx512() {
#if defined(__x86_64__)
  // These too check that the operating system saves the registers, the upper sixteen and the masks included.
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

}  // namespace chairlift
