#include "asymkv/kv/layout.h"

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr int64_t kScaleBytes = static_cast<int64_t>(sizeof(float));

// Largest page of one layer. Keeps every byte offset of up to 2^31 pages inside 63 bits.
constexpr int64_t kMaxPageBytes = int64_t{1} << 31;

// Bytes of one side of a page.
double page_side_bytes(const KvGeometry& geometry, double row_bytes, int64_t page_padding_bytes) {
  return static_cast<double>(geometry.num_kv_heads) * static_cast<double>(geometry.page_size) * row_bytes +
         static_cast<double>(page_padding_bytes);
}

void check_sizes(const KvGeometry& geometry, const KvFormat& format, const KvPadding& padding) {
  if (geometry.num_kv_heads <= 0 || geometry.k_head_dim <= 0 || geometry.v_head_dim <= 0 || geometry.page_size <= 0) {
    throw_unsupported("KV geometry needs positive sizes: {} KV heads, key dim {}, value dim {}, page size {}",
                      geometry.num_kv_heads, geometry.k_head_dim, geometry.v_head_dim, geometry.page_size);
  }
  if (padding.k_row_bytes < 0 || padding.v_row_bytes < 0 || padding.k_page_bytes < 0 || padding.v_page_bytes < 0) {
    throw_unsupported("KV padding cannot be negative: rows {} and {}, pages {} and {} bytes", padding.k_row_bytes,
                      padding.v_row_bytes, padding.k_page_bytes, padding.v_page_bytes);
  }
  // In double, where nothing overflows; exact for every page that passes.
  const auto row_bytes = [](int64_t head_dim, DType dtype, int64_t row_padding) {
    return static_cast<double>(head_dim) * static_cast<double>(dtype_bytes(dtype)) + static_cast<double>(row_padding);
  };
  const double k_row = row_bytes(geometry.k_head_dim, format.key.dtype, padding.k_row_bytes);
  const double v_row = row_bytes(geometry.v_head_dim, format.value.dtype, padding.v_row_bytes);
  const double page =
      page_side_bytes(geometry, k_row, padding.k_page_bytes) + page_side_bytes(geometry, v_row, padding.v_page_bytes);
  if (page > static_cast<double>(kMaxPageBytes)) {
    throw_unsupported("a KV page of {:.0f} bytes is too large, the limit is {}; use a smaller page size", page,
                      kMaxPageBytes);
  }
}

void check_side_scale(std::string_view side, const std::string& id, bool is_8bit, ScaleKind scale) {
  if (is_8bit == (scale != ScaleKind::kNone)) return;
  throw_unsupported(
      "{} stored as {} cannot have scale policy \"{}\": 8-bit sides need fixed or dynamic scales, others none", side,
      id, scale_kind_name(scale));
}

}  // namespace

PageBytes PageBytes::scaled(int64_t count) const {
  return {k_payload * count, v_payload * count, k_scales * count, v_scales * count, padding * count};
}

KvLayout::KvLayout(const KvGeometry& geometry, const KvFormat& format, const KvPadding& padding)
    : geometry_(geometry), format_(format), padding_(padding) {
  check_sizes(geometry, format, padding);
  if (format.key.prebias && !format.key.is_8bit()) {
    throw_unsupported("bias removal is for 8-bit keys, not for {}", dtype_name(format.key.dtype));
  }
  if (format.key.prebias && geometry.k_head_dim % 2 != 0) {
    throw_unsupported("bias removal needs an even key head dim, found {}", geometry.k_head_dim);
  }
  check_side_scale("keys", format.key.id(), format.key.is_8bit(), format.key.scale);
  check_side_scale("values", format.value.id(), format.value.is_8bit(), format.value.scale);
  if (format.value.dtype == DType::kI8) throw_unsupported("values stored as i8 have no codec; use e4m3");
  if (format.key.dtype == DType::kI8 && format.key.scale != ScaleKind::kDynamic) {
    throw_unsupported("INT8 keys have dynamic scales only");
  }
}

int64_t KvLayout::k_row_payload_bytes() const {
  return geometry_.k_head_dim * dtype_bytes(format_.key.dtype);
}
int64_t KvLayout::v_row_payload_bytes() const {
  return geometry_.v_head_dim * dtype_bytes(format_.value.dtype);
}

int64_t KvLayout::k_page_stride_bytes() const {
  return geometry_.num_kv_heads * k_head_stride_bytes() + padding_.k_page_bytes;
}

int64_t KvLayout::v_page_stride_bytes() const {
  return geometry_.num_kv_heads * v_head_stride_bytes() + padding_.v_page_bytes;
}

int64_t KvLayout::k_row_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const {
  return page * k_page_stride_bytes() + kv_head * k_head_stride_bytes() + slot * k_row_stride_bytes();
}

int64_t KvLayout::v_row_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const {
  return page * v_page_stride_bytes() + kv_head * v_head_stride_bytes() + slot * v_row_stride_bytes();
}

int64_t KvLayout::scale_index(int64_t page, int64_t kv_head, int64_t slot) const {
  return page * page_scale_elems() + kv_head * geometry_.page_size + slot;
}

int64_t KvLayout::k_scale_plane_bytes(int64_t num_pages) const {
  return has_k_scales() ? num_pages * page_scale_elems() * kScaleBytes : 0;
}

int64_t KvLayout::v_scale_plane_bytes(int64_t num_pages) const {
  return has_v_scales() ? num_pages * page_scale_elems() * kScaleBytes : 0;
}

PageBytes KvLayout::page_bytes() const {
  const int64_t rows = page_scale_elems();
  PageBytes bytes;
  bytes.k_payload = rows * k_row_payload_bytes();
  bytes.v_payload = rows * v_row_payload_bytes();
  bytes.k_scales = k_scale_plane_bytes(1);
  bytes.v_scales = v_scale_plane_bytes(1);
  bytes.padding = k_page_stride_bytes() + v_page_stride_bytes() - bytes.k_payload - bytes.v_payload;
  return bytes;
}

int64_t KvLayout::pages_for(int64_t num_tokens) const {
  return (num_tokens + geometry_.page_size - 1) / geometry_.page_size;
}

}  // namespace asymkv
