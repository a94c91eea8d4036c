// What the processor and the operating system offer, asked at run time.
#pragma once

namespace chairlift {

// AVX2, FMA and F16C together: what files under arch/avx2 are compiled for.
bool cpu_has_avx2();

// The above and AVX-512 F, BW, VL and DQ: what files under arch/avx512 are compiled for.
bool cpu_has_avx512();

}  // namespace chairlift
