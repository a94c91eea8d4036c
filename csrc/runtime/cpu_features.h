// What the processor and the operating system offer, asked at run time.
#pragma once

#include <vector>

namespace chairlift {

// One feature that some kernel here needs or could use, by its name in /proc/cpuinfo. Found: the processor has it and
// the operating system saves the registers that it takes.
struct CpuFeature {
  const char* name;
  bool found;
};

// Those of this kind of processor; empty on kinds that no kernel is written for.
std::vector<CpuFeature> cpu_features();

// AVX2, FMA and F16C together: what files under arch/avx2 are compiled for.
bool cpu_has_avx2();

// The above and AVX-512 F, BW, VL and DQ: what files under arch/avx512 are compiled for.
bool cpu_has_avx512();

// The above and AVX-512 VNNI.
bool cpu_has_avx512_vnni();

// What cpu_has_avx2 says and AVX-VNNI, the same dot products for processors without AVX-512.
bool cpu_has_avx_vnni();

// What cpu_has_avx512_vnni says and AMX with 8-bit integers. Asks Linux for the tile registers; the permission is
// the whole process's, and a system that refuses it counts as one without AMX.
bool cpu_has_amx_int8();

// 64-bit Arm: its vectors (ASIMD), and those and the 8-bit dot products (SDOT).
bool cpu_has_neon();
bool cpu_has_neon_dotprod();

}  // namespace chairlift
