#include "asymkv/kernels/cuda/instance_table.h"

#include <algorithm>
#include <array>

#include "asymkv/base/error.h"
#include "asymkv/kv/limits.h"

namespace asymkv::cuda {
namespace {

std::string refusal(const KvGeometry& geometry, const KvFormat& format, int64_t group) {
  if (group < 1 || group > kMaxQueryGroup) {
    return fmt::format("groups of {} query heads per KV head: 1 to {} are served", group, kMaxQueryGroup);
  }
  if (geometry.page_size != 16 && geometry.page_size != 64) {
    return fmt::format("pages of {} slots: this family reads pages of 16 and 64", geometry.page_size);
  }
  if (geometry.k_head_dim != geometry.v_head_dim) {
    return fmt::format("key dim {} and value dim {} differ: this family wants them equal", geometry.k_head_dim,
                       geometry.v_head_dim);
  }
  constexpr std::array<int64_t, 6> kHeadDims = {64, 80, 96, 128, 192, 256};
  if (std::ranges::find(kHeadDims, geometry.k_head_dim) == kHeadDims.end()) {
    return fmt::format("head dim {}: this family has 64, 80, 96, 128, 192 and 256", geometry.k_head_dim);
  }
  if (format.key.dtype == DType::kF32 || format.value.dtype == DType::kF32) {
    return fmt::format("{}: this family reads 8- and 16-bit sides, no 32-bit ones", format.id());
  }
  if (format.value.dtype == DType::kI8) return fmt::format("{}: values are 16-bit or E4M3", format.id());
  if (!format.key.is_8bit() && !format.value.is_8bit() && format.key.dtype != format.value.dtype) {
    return fmt::format("{}: two 16-bit sides must have one type", format.id());
  }
  if (!format.key.is_8bit() && format.key.prebias) {
    return fmt::format("{}: only 8-bit keys are stored without their bias", format.id());
  }
  if (format.key.prebias && !format.value.is_8bit()) {
    return fmt::format("{}: pre-bias keys come with E4M3 values in this family", format.id());
  }
  if (format.key.dtype == DType::kI8 && !format.value.is_8bit()) {
    return fmt::format("{}: INT8 keys come with E4M3 values in this family", format.id());
  }
  return {};
}

}  // namespace

DecodeChoice choose_decode(const KvGeometry& geometry, const KvFormat& format, int64_t group, int64_t num_queries,
                           bool fast_bias) {
  DecodeChoice choice;
  choice.reason = refusal(geometry, format, group);
  if (!choice.reason.empty()) return choice;
  choice.ok = true;
  choice.config = {.key = format.key.dtype,
                   .value = format.value.dtype,
                   .k_dynamic = format.key.scale == ScaleKind::kDynamic,
                   .v_dynamic = format.value.scale == ScaleKind::kDynamic,
                   .prebias = format.key.prebias,
                   .fast_bias = format.key.prebias && fast_bias,
                   .head_dim = static_cast<int32_t>(geometry.k_head_dim),
                   .column_tiles = group * num_queries > kColumnsPerTile ? 2 : 1};
  return choice;
}

}  // namespace asymkv::cuda
