#include "asymkv/kernels/cuda/instance_table.h"

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

std::string refusal(const KvGeometry& geometry, const KvFormat& format, int64_t group) {
  if (group < 1 || group > 16) return fmt::format("groups of {} query heads per KV head: 1 to 16 are served", group);
  if (geometry.page_size != kPageSize) {
    return fmt::format("pages of {} slots: this family reads pages of {}", geometry.page_size, kPageSize);
  }
  if (geometry.k_head_dim != geometry.v_head_dim) {
    return fmt::format("key dim {} and value dim {} differ: this family wants them equal", geometry.k_head_dim,
                       geometry.v_head_dim);
  }
  if (geometry.k_head_dim != 64 && geometry.k_head_dim != 128 && geometry.k_head_dim != 256) {
    return fmt::format("head dim {}: this family has 64, 128 and 256", geometry.k_head_dim);
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

DecodeChoice choose_decode(const KvGeometry& geometry, const KvFormat& format, int64_t group) {
  DecodeChoice choice;
  choice.reason = refusal(geometry, format, group);
  if (!choice.reason.empty()) return choice;
  choice.ok = true;
  choice.config = {.key = format.key.dtype,
                   .value = format.value.dtype,
                   .k_dynamic = format.key.scale == ScaleKind::kDynamic,
                   .v_dynamic = format.value.scale == ScaleKind::kDynamic,
                   .prebias = format.key.prebias,
                   .head_dim = static_cast<int32_t>(geometry.k_head_dim),
                   .column_tiles = group > kColumnsPerTile ? 2 : 1};
  return choice;
}

}  // namespace asymkv::cuda
