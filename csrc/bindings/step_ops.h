// Operators for programs: shapes are compared here, when an op is made; what depends on the step, each time it runs.
#pragma once

#include <nanobind/ndarray.h>

#include "kernels/kv_pool.h"
#include "kernels/packed_weight.h"
#include "kernels/rope.h"
#include "runtime/program.h"

namespace chairlift {

using NormWeight = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// Each throws std::invalid_argument for arguments that don't fit together. What they compute: chairlift/ops.h.
Op embed_op(const PackedWeight& table, const Activation& out);
Op rms_norm_op(const Activation& x, const NormWeight& weight, float eps, const Activation& out);
Op linear_op(const Activation& x, const PackedWeight& w, const Activation& out, bool accumulate);
Op gated_linear_op(const Activation& x, const PackedWeight& w, GateActivation activation, const Activation& out);
Op gather_op(const Activation& x, const Activation& out);
Op rope_and_store_op(const Activation& qkv, const RopeTables& rope, KVPool& pool, int64_t layer);
Op attention_op(const Activation& qkv, const KVPool& pool, int64_t layer, float scale, const Activation& out);

}  // namespace chairlift
