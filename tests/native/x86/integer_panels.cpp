// Compares the panels of integer layouts of one instruction set with the generic ones, bit by bit:
//   integer_panels
// REGISTER_KERNELS is the function that puts them into a table; see emulation.h for processors that lack it.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "arch/kernel_table.h"
#include "kernels/half.h"
#include "kernels/packed_weight.h"

using namespace chairlift;

namespace {

using Random = std::mt19937;

constexpr int64_t kIns[] = {32, 96, 512, 544, 1056};  // less than a chunk, one, more
constexpr int64_t kPanels[] = {1, 3};

struct alignas(64) Line {
  uint8_t bytes[64];
};

int64_t group_bytes(Layout layout) { return layout == Layout::Int4 ? kGroup4Bytes : kGroup8Bytes; }

// Random weights, every other panel with the largest ones only.
std::vector<Line> random_panels(Random& random, Layout layout, int64_t in, int64_t num_panels, int64_t panel_bytes) {
  const int64_t dword_bytes = layout == Layout::Int4 ? 256 : 512;
  std::vector<Line> lines(static_cast<size_t>(num_panels * panel_bytes / 64));
  std::normal_distribution<float> normal;
  for (int64_t p = 0; p < num_panels; ++p) {
    for (int64_t g = 0; g < in / kGroupSize; ++g) {
      uint8_t* group = lines[0].bytes + p * panel_bytes + g * group_bytes(layout);
      for (int64_t i = 0; i < dword_bytes; ++i) {
        const auto byte = static_cast<uint8_t>(p % 2 == 0 ? random() : 0xff);
        group[i] = layout == Layout::Int8 && byte == 0 ? uint8_t{1} : byte;  // 1..255
      }
      for (int64_t i = dword_bytes; i < group_bytes(layout); i += 2) {
        const uint16_t half = half_from_float(0.1f * normal(random));
        std::memcpy(group + i, &half, 2);
      }
    }
  }
  return lines;
}

// Activations as quantising gives them; the first row is all 127, the second all -127.
std::vector<QuantGroup> random_rows(Random& random, int64_t rows, int64_t stride) {
  std::vector<QuantGroup> groups(static_cast<size_t>(rows * stride));
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < groups.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / stride;
    int32_t sum = 0;
    for (int8_t& q : groups[i].q) {
      q = static_cast<int8_t>(row == 0 ? 127 : row == 1 ? -127 : static_cast<int>(random() % 255) - 127);
      sum += q;
    }
    groups[i].scale = 0.01f * normal(random) * normal(random);
    groups[i].scaled_sum = groups[i].scale * static_cast<float>(sum);
    groups[i].bias = -128 * sum;
  }
  return groups;
}

// Bits of what a kernel gives.
std::vector<Line> run(PanelKernel kernel, PanelTask task) {
  std::vector<Line> acc(static_cast<size_t>(task.num_panels * task.rows));
  std::memset(acc.data(), 0xee, acc.size() * sizeof(Line));
  task.acc = reinterpret_cast<float*>(acc.data());
  kernel(task);
  return acc;
}

int64_t compare(const KernelTable& generic, const KernelTable& tested, Random& random, Layout layout, int64_t in,
                int64_t num_panels) {
  const auto index = static_cast<int>(layout);
  PanelTask task;
  task.in = in;
  task.num_panels = num_panels;
  task.panel_bytes = (in / kGroupSize * group_bytes(layout) + 63) / 64 * 64;
  const std::vector<Line> panels = random_panels(random, layout, in, num_panels, task.panel_bytes);
  task.panels = task.next_panels = panels[0].bytes;
  task.x_stride = in / kGroupSize | 1;
  const std::vector<QuantGroup> x = random_rows(random, 70, task.x_stride);
  task.xq = x.data();
  int64_t num_compared = 0;
  for (task.rows = 1; task.rows <= 70; task.rows += task.rows < 36 ? 1 : 17) {
    const std::vector<Line> expected = run(generic.linear.panels[index], task);
    const std::vector<Line> got = run(tested.linear.panels[index], task);
    if (std::memcmp(got.data(), expected.data(), got.size() * sizeof(Line)) != 0) {
      std::fprintf(stderr, "layout %d, in %d, rows %d, panels %d: the bits differ from the generic kernel's\n", index,
                   static_cast<int>(in), static_cast<int>(task.rows), static_cast<int>(num_panels));
      std::exit(1);
    }
    num_compared += static_cast<int64_t>(got.size()) * kPanelWidth;
  }
  return num_compared;
}

}  // namespace

int main() {
  KernelTable generic, tested;
  register_generic_integer(generic);
  register_generic_integer(tested);
  REGISTER_KERNELS(tested);
  Random random(1);
  int64_t num_compared = 0;
  for (Layout layout : {Layout::Int4, Layout::Int8}) {
    for (int64_t in : kIns) {
      for (int64_t num_panels : kPanels) num_compared += compare(generic, tested, random, layout, in, num_panels);
    }
  }
  int32_t sink = 0;
  tested.probe.int8_peak(10, &sink);
  std::printf("%s: %lld values equal\n", tested.linear.integer_origin, static_cast<long long>(num_compared));
  return 0;
}
