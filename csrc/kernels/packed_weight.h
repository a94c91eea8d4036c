// Weights in the layouts the kernels read. Nothing is lost: every layout gives back the file's values exactly (Int8
// clamps -128, which no quantiser writes, to -127).
//
// Outputs are cut into panels of 16. One panel is contiguous and 64-byte aligned, k runs along it:
//
//   Group4  per 32 k: [4][16] dwords, then f16 scale[16], then f16 min[16]   (320 bytes)
//           nibble i of dword j of a lane is k = 4 * i + j;  w = fma(scale, q, min), q in 0..15
//   Group8  per 32 k: [8][16] dwords, then f16 scale[16]                     (544 bytes)
//           byte i of dword j of a lane is k = 8 * i + j;    w = fma(scale, q, -128 * scale), q in 0..255
//   F16, BF16  [in][16] 16-bit floats
//   F32        [in][16] floats
//   Int4    per 32 k: [4][16] dwords, then f16 scale[16], then f16 min[16]   (320 bytes)
//           byte b of dword j of a lane holds k = 8 * j + b in its low nibble and k = 8 * j + 4 + b in its high one
//   Int8    per 32 k: [8][16] dwords, then f16 scale[16]                     (544 bytes)
//           byte b of dword j of a lane is k = 4 * j + b;  w = scale * (q - 128), q in 1..255
//
// Int4 and Int8 are for products with 8-bit activations (ComputeDtype::Int8): four adjacent k of a lane are what one
// dot-product instruction takes. In a float layout a kernel isolates field i of a dword with a mask alone, because
// q * 2^(bits * i) converts to float exactly and scale * 2^-(bits * i) is exact too: the fma sees the same product.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/kernel_table.h"
#include "chairlift/ops.h"
#include "runtime/aligned_buffer.h"
#include "runtime/context.h"

namespace chairlift {

constexpr int64_t kPanelWidth = 16;
constexpr int64_t kGroupSize = 32;
constexpr int64_t kGroup4Bytes = 4 * 16 * 4 + 2 * 16 * 2;
constexpr int64_t kGroup8Bytes = 8 * 16 * 4 + 16 * 2;

// Bytes of one panel, a multiple of 64.
int64_t panel_bytes(Layout layout, int64_t in);

// Adjacent outputs in one layout, padded to whole panels with zeros.
struct Segment {
  Layout layout = Layout::F32;
  int64_t first_out = 0;
  int64_t num_out = 0;
  int64_t num_panels = 0;
  int64_t panel_bytes = 0;
  AlignedBuffer data;  // [num_panels, panel_bytes]

  const uint8_t* panel(int64_t p) const { return data.data() + p * panel_bytes; }
};

struct PackedWeight {
  PackedWeight() = default;
  PackedWeight(PackedWeight&&) = default;  // too big to be copied by accident
  PackedWeight& operator=(PackedWeight&&) = default;

  int64_t out = 0;
  int64_t in = 0;
  // Gated weights hold gate and up, [out, in] each: one segment with panels gate 0, up 0, gate 1, up 1, ... when both
  // have the same layout, else two segments.
  bool gated = false;
  std::vector<Segment> segments;

  bool has_integers() const;  // whether some segment wants 8-bit activations

  int64_t bytes() const;
};

// A tensor as it lies in a file: [out, row_bytes], see TensorType in chairlift/ops/interface.py.
struct TensorView {
  TensorType type = TensorType::F32;
  int64_t out = 0;
  int64_t in = 0;
  const uint8_t* data = nullptr;
  int64_t row_stride = 0;  // bytes
};

// Bytes of one row of a tensor. Throws std::invalid_argument if `in` is no multiple of the type's block.
int64_t row_bytes(TensorType type, int64_t in);

// Stacks parts with the same `in` along out. Throws std::invalid_argument for no parts or different `in`.
// With ComputeDtype::Int8, 4-bit and 8-bit tensors take the integer layouts; others stay floats.
PackedWeight pack_linear(Context&, const std::vector<TensorView>& parts, ComputeDtype = ComputeDtype::F32);
PackedWeight pack_gated_linear(Context&, const TensorView& gate, const TensorView& up,
                               ComputeDtype = ComputeDtype::F32);

}  // namespace chairlift
