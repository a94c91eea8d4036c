#include "kernels/packed_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/half.h"

namespace chairlift {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct BlockFormat {
  int64_t values, bytes;
};

BlockFormat block_format(TensorType type) {
  switch (type) {
    case TensorType::F32: return {1, 4};
    case TensorType::F16: return {1, 2};
    case TensorType::BF16: return {1, 2};
    case TensorType::Q4_0: return {32, 18};
    case TensorType::Q4_1: return {32, 20};
    case TensorType::Q8_0: return {32, 34};
  }
  throw std::logic_error("unknown tensor type");
}

template <typename T>
T load_at(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void store_at(uint8_t* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(T));
}

// Q4_0 is w = d * (q - 8) = fma(d, q, -8 d), exact while -8 d is an f16; beyond (never seen in a real model) the
// tensor is widened to f32.
bool q4_0_fits_group4(const TensorView& tensor) {
  for (int64_t r = 0; r < tensor.out; ++r) {
    for (int64_t b = 0; b < tensor.in / kGroupSize; ++b) {
      const float d = float_from_half(load_at<uint16_t>(tensor.data + r * tensor.row_stride + b * 18));
      if (!(std::fabs(d) <= 8188.0f)) return false;
    }
  }
  return true;
}

Layout float_layout_of(const TensorView& tensor) {
  switch (tensor.type) {
    case TensorType::F32: return Layout::F32;
    case TensorType::F16: return Layout::F16;
    case TensorType::BF16: return Layout::BF16;
    case TensorType::Q4_0: return q4_0_fits_group4(tensor) ? Layout::Group4 : Layout::F32;
    case TensorType::Q4_1: return Layout::Group4;
    case TensorType::Q8_0: return Layout::Group8;
  }
  throw std::logic_error("unknown tensor type");
}

Layout layout_of(const TensorView& tensor, ComputeDtype compute) {
  const Layout layout = float_layout_of(tensor);
  if (compute == ComputeDtype::F32) return layout;
  return layout == Layout::Group4 ? Layout::Int4 : layout == Layout::Group8 ? Layout::Int8 : layout;
}

// One file row becomes one lane of a panel.
using PackLane = void (*)(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane);

template <typename T>
void pack_plain(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  constexpr int64_t size = sizeof(T);
  for (int64_t k = 0; k < in; ++k) store_at(panel + (k * kPanelWidth + lane) * size, load_at<T>(row + k * size));
}

// A file block holds value i in the low nibble of byte i and value i + 16 in the high one.
uint32_t nibble(const uint8_t* nibbles, int64_t k) {
  const uint32_t byte = nibbles[k % 16];
  return k < 16 ? byte & 0xfu : byte >> 4;
}

using PackBlock4 = void (*)(const uint8_t* nibbles, uint16_t scale, uint16_t min, uint8_t* group, int64_t lane);

void pack_group4_block(const uint8_t* nibbles, uint16_t scale, uint16_t min, uint8_t* group, int64_t lane) {
  for (int64_t j = 0; j < 4; ++j) {
    uint32_t dword = 0;
    for (int64_t i = 0; i < 8; ++i) dword |= nibble(nibbles, 4 * i + j) << (4 * i);
    store_at(group + (j * kPanelWidth + lane) * 4, dword);
  }
  store_at(group + 256 + lane * 2, scale);
  store_at(group + 288 + lane * 2, min);
}

void pack_int4_block(const uint8_t* nibbles, uint16_t scale, uint16_t min, uint8_t* group, int64_t lane) {
  for (int64_t k = 0; k < kGroupSize; ++k) {
    uint8_t& byte = group[(k / 8 * kPanelWidth + lane) * 4 + k % 4];
    byte = static_cast<uint8_t>(byte | nibble(nibbles, k) << (k % 8 < 4 ? 0 : 4));
  }
  store_at(group + 256 + lane * 2, scale);
  store_at(group + 288 + lane * 2, min);
}

template <PackBlock4 pack_block>
void pack_q4_1(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  for (int64_t b = 0; b < in / kGroupSize; ++b, row += 20, panel += kGroup4Bytes) {
    pack_block(row + 4, load_at<uint16_t>(row), load_at<uint16_t>(row + 2), panel, lane);
  }
}

template <PackBlock4 pack_block>
void pack_q4_0(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  for (int64_t b = 0; b < in / kGroupSize; ++b, row += 18, panel += kGroup4Bytes) {
    const uint16_t scale = load_at<uint16_t>(row);
    pack_block(row + 2, scale, half_from_float(-8.0f * float_from_half(scale)), panel, lane);
  }
}

void pack_q4_0_widened(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  for (int64_t k = 0; k < in; ++k) {
    const uint8_t* block = row + k / kGroupSize * 18;
    const float q = static_cast<float>(nibble(block + 2, k % kGroupSize)) - 8.0f;
    store_at(panel + (k * kPanelWidth + lane) * 4, float_from_half(load_at<uint16_t>(block)) * q);
  }
}

void pack_q8_0(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  for (int64_t b = 0; b < in / kGroupSize; ++b, row += 34, panel += kGroup8Bytes) {
    for (int64_t j = 0; j < 8; ++j) {
      uint32_t dword = 0;
      for (int64_t i = 0; i < 4; ++i) {
        const uint32_t shifted = static_cast<uint32_t>(row[2 + 8 * i + j] ^ 0x80u);  // int8 + 128
        dword |= shifted << (8 * i);
      }
      store_at(panel + (j * kPanelWidth + lane) * 4, dword);
    }
    store_at(panel + 512 + lane * 2, load_at<uint16_t>(row));
  }
}

void pack_q8_0_integers(const uint8_t* row, int64_t in, uint8_t* panel, int64_t lane) {
  for (int64_t b = 0; b < in / kGroupSize; ++b, row += 34, panel += kGroup8Bytes) {
    for (int64_t k = 0; k < kGroupSize; ++k) {
      const uint8_t shifted = row[2 + k] ^ 0x80u;  // int8 + 128
      panel[(k / 4 * kPanelWidth + lane) * 4 + k % 4] = std::max<uint8_t>(shifted, 1);
    }
    store_at(panel + 512 + lane * 2, load_at<uint16_t>(row));
  }
}

PackLane pack_q4_0_of(Layout layout) {
  if (layout == Layout::Int4) return pack_q4_0<pack_int4_block>;
  return layout == Layout::Group4 ? pack_q4_0<pack_group4_block> : pack_q4_0_widened;
}

PackLane pack_lane_of(TensorType type, Layout layout) {
  switch (type) {
    case TensorType::F32: return pack_plain<uint32_t>;
    case TensorType::F16: return pack_plain<uint16_t>;
    case TensorType::BF16: return pack_plain<uint16_t>;
    case TensorType::Q4_0: return pack_q4_0_of(layout);
    case TensorType::Q4_1:
      return layout == Layout::Int4 ? pack_q4_1<pack_int4_block> : pack_q4_1<pack_group4_block>;
    case TensorType::Q8_0: return layout == Layout::Int8 ? pack_q8_0_integers : pack_q8_0;
  }
  throw std::logic_error("unknown tensor type");
}

Segment make_segment(BufferArena& arena, Layout layout, int64_t in, int64_t first_out, int64_t num_out,
                     int64_t num_panels) {
  Segment segment;
  segment.layout = layout;
  segment.first_out = first_out;
  segment.num_out = num_out;
  segment.num_panels = num_panels;
  segment.panel_bytes = panel_bytes(layout, in);
  segment.data = arena.allocate(static_cast<size_t>(num_panels * segment.panel_bytes));
  return segment;
}

// Writes a tensor into panels first_panel, first_panel + panel_step, ... of a segment.
void pack_tensor(ThreadPool& pool, const TensorView& tensor, Segment& segment, int64_t first_panel,
                 int64_t panel_step) {
  const PackLane pack_lane = pack_lane_of(tensor.type, segment.layout);
  pool.parallel_for(ceil_div(tensor.out, kPanelWidth), [&](int64_t p) {
    uint8_t* panel = segment.data.data() + (first_panel + p * panel_step) * segment.panel_bytes;
    const int64_t first = p * kPanelWidth;
    for (int64_t lane = 0; lane < std::min(kPanelWidth, tensor.out - first); ++lane) {
      pack_lane(tensor.data + (first + lane) * tensor.row_stride, tensor.in, panel, lane);
    }
  });
}

// How many parts from `first` on can share a segment: the same layout, whole panels except in the last.
size_t parts_in_segment(const std::vector<TensorView>& parts, const std::vector<Layout>& layouts, size_t first) {
  size_t last = first;
  while (last + 1 < parts.size() && layouts[last + 1] == layouts[first] && parts[last].out % kPanelWidth == 0) ++last;
  return last - first + 1;
}

void check_same_in(const std::vector<TensorView>& parts) {
  if (parts.empty()) throw std::invalid_argument("a linear weight needs at least one part");
  for (const TensorView& part : parts) {
    if (part.in != parts[0].in) {
      throw std::invalid_argument("parts of a linear weight have different inputs: " + std::to_string(parts[0].in) +
                                  " and " + std::to_string(part.in));
    }
  }
}

}  // namespace

int64_t panel_bytes(Layout layout, int64_t in) {
  int64_t bytes = 0;
  switch (layout) {
    case Layout::Group4:
    case Layout::Int4: bytes = in / kGroupSize * kGroup4Bytes; break;
    case Layout::Group8:
    case Layout::Int8: bytes = in / kGroupSize * kGroup8Bytes; break;
    case Layout::F16:
    case Layout::BF16: bytes = in * kPanelWidth * 2; break;
    case Layout::F32: bytes = in * kPanelWidth * 4; break;
  }
  return ceil_div(bytes, 64) * 64;
}

int64_t row_bytes(TensorType type, int64_t in) {
  const BlockFormat format = block_format(type);
  if (in <= 0 || in % format.values != 0) {
    throw std::invalid_argument("a row of " + std::to_string(in) + " values is not a positive multiple of the block of " +
                                std::to_string(format.values));
  }
  return in / format.values * format.bytes;
}

int64_t PackedWeight::bytes() const {
  int64_t total = 0;
  for (const Segment& segment : segments) total += static_cast<int64_t>(segment.data.size());
  return total;
}

bool PackedWeight::has_integers() const {
  return std::any_of(segments.begin(), segments.end(), [](const Segment& s) { return is_integer(s.layout); });
}

PackedWeight pack_linear(Context& context, const std::vector<TensorView>& parts, ComputeDtype compute) {
  check_same_in(parts);
  PackedWeight w;
  w.in = parts[0].in;
  std::vector<Layout> layouts;
  for (const TensorView& part : parts) layouts.push_back(layout_of(part, compute));
  for (size_t first = 0; first < parts.size();) {
    const size_t end = first + parts_in_segment(parts, layouts, first);
    int64_t num_out = 0;
    for (size_t i = first; i < end; ++i) num_out += parts[i].out;
    const int64_t num_panels = ceil_div(num_out, kPanelWidth);
    Segment segment = make_segment(context.weights(), layouts[first], w.in, w.out, num_out, num_panels);
    int64_t first_panel = 0;
    for (; first < end; ++first) {
      pack_tensor(context.pool(), parts[first], segment, first_panel, 1);
      first_panel += parts[first].out / kPanelWidth;
    }
    w.out += num_out;
    w.segments.push_back(std::move(segment));
  }
  return w;
}

PackedWeight pack_gated_linear(Context& context, const TensorView& gate, const TensorView& up, ComputeDtype compute) {
  check_same_in({gate, up});
  if (gate.out != up.out) {
    throw std::invalid_argument("gate has " + std::to_string(gate.out) + " outputs but up has " +
                                std::to_string(up.out));
  }
  PackedWeight w;
  w.in = gate.in;
  w.out = gate.out;
  w.gated = true;
  const Layout gate_layout = layout_of(gate, compute), up_layout = layout_of(up, compute);
  const int64_t num_panels = ceil_div(w.out, kPanelWidth);
  const bool interleaved = gate_layout == up_layout;
  const auto add_segment = [&](Layout layout, int64_t segment_panels) {
    w.segments.push_back(make_segment(context.weights(), layout, w.in, 0, w.out, segment_panels));
  };
  add_segment(gate_layout, interleaved ? 2 * num_panels : num_panels);
  if (!interleaved) add_segment(up_layout, num_panels);
  pack_tensor(context.pool(), gate, w.segments[0], 0, interleaved ? 2 : 1);
  pack_tensor(context.pool(), up, w.segments.back(), interleaved ? 1 : 0, interleaved ? 2 : 1);
  return w;
}

}  // namespace chairlift
