#include "runtime/isas.h"

#include <cstring>
#include <stdexcept>

#include "runtime/cpu_features.h"

namespace chairlift {
namespace {

struct Isa {
  const char* name;
  const char* base;  // an earlier one, whose kernels it inherits where it is no faster; none for the first
  const char* features;  // that it needs, in words
  const char* adds[4];  // those that its base does not need, as cpu_features() names them; the rest is null
  bool (*is_available)();
  void (*add_kernels)(KernelTable&);  // compiled for the features: not to be called without them
};

bool always() { return true; }

void add_generic(KernelTable& table) {
  register_generic_linear(table);
  register_generic_integer(table);
  register_generic_step(table);
}

#ifdef CHAIRLIFT_HAVE_X86
void add_avx2(KernelTable& table) {
  register_avx2_linear(table);
  register_avx2_step(table);
}

void add_avx512(KernelTable& table) {
  register_avx512_linear(table);
  register_avx512_attention(table.step);
}
#endif

// In ascending order of preference: "auto" is the last that is available.
constexpr Isa kIsas[] = {
    {"generic", nullptr, "nothing", {}, always, add_generic},
#ifdef CHAIRLIFT_HAVE_X86
    {"avx2", "generic", "AVX2, FMA and F16C", {"avx2", "fma", "f16c"}, cpu_has_avx2, add_avx2},
#ifdef CHAIRLIFT_HAVE_AVXVNNI
    {"avxvnni", "avx2", "AVX2, FMA, F16C and AVX-VNNI", {"avx_vnni"}, cpu_has_avx_vnni, register_avxvnni_linear},
#endif
    {"avx512", "avx2", "AVX-512 F, BW, VL and DQ", {"avx512f", "avx512bw", "avx512vl", "avx512dq"}, cpu_has_avx512,
     add_avx512},
    {"avx512vnni", "avx512", "AVX-512 F, BW, VL, DQ and VNNI", {"avx512_vnni"}, cpu_has_avx512_vnni,
     register_avx512vnni_linear},
#ifdef CHAIRLIFT_HAVE_AMX
    {"amx", "avx512vnni", "AVX-512 F, BW, VL, DQ and VNNI, and AMX with 8-bit integers", {"amx_tile", "amx_int8"},
     cpu_has_amx_int8, register_amx_linear},
#endif
#endif
#ifdef CHAIRLIFT_HAVE_NEON
    {"neon", "generic", "ASIMD", {"asimd"}, cpu_has_neon, register_neon_linear},
    {"neondot", "neon", "ASIMD and SDOT", {"asimddp"}, cpu_has_neon_dotprod, register_neondot_linear},
#endif
};

const Isa& find_isa(const std::string& name) {
  const Isa* found = nullptr;
  std::string known = "\"auto\"";
  for (const Isa& isa : kIsas) {
    if (name == isa.name || (name == "auto" && isa.is_available())) found = &isa;
    known += ", \"" + std::string(isa.name) + "\"";
  }
  if (found == nullptr) throw std::invalid_argument("isa is \"" + name + "\"; this build has " + known);
  return *found;
}

bool is_found(const char* name) {
  for (const CpuFeature& feature : cpu_features()) {
    if (std::strcmp(feature.name, name) == 0) return feature.found;
  }
  return false;
}

// Those features that an instruction set or one of its bases needs and that are not there.
std::string missing_features(const Isa& isa) {
  std::string missing = isa.base == nullptr ? "" : missing_features(find_isa(isa.base));
  for (const char* name : isa.adds) {
    if (name != nullptr && !is_found(name)) missing += (missing.empty() ? "" : ", ") + std::string(name);
  }
  return missing;
}

KernelTable build_table(const Isa& isa) {
  KernelTable table;
  if (isa.base != nullptr) table = build_table(find_isa(isa.base));
  table.isa = isa.name;
  isa.add_kernels(table);
  return table;
}

}  // namespace

std::vector<IsaInfo> isas() {
  std::vector<IsaInfo> infos;
  for (const Isa& isa : kIsas) infos.push_back({isa.name, isa.features, isa.is_available()});
  return infos;
}

KernelTable kernel_table(const std::string& name) {
  const Isa& isa = find_isa(name);
  if (isa.is_available()) return build_table(isa);
  std::string missing = missing_features(isa);
  if (missing.empty()) missing = "permission to use " + std::string(isa.features);  // AMX tiles, asked of the system
  throw std::invalid_argument("isa is \"" + name + "\" but this processor or system lacks " + missing);
}

}  // namespace chairlift
