#pragma once

#include <cstdint>
#include <string>

#include "asymkv/kv/format.h"

namespace asymkv {

// Shape of one layer's cache. Keys and values may have different head sizes.
struct KvGeometry {
  int64_t num_kv_heads = 0;
  int64_t k_head_dim = 0;
  int64_t v_head_dim = 0;
  int64_t page_size = 16;  // slots (tokens) per page
  bool operator==(const KvGeometry&) const = default;
};

// Unused bytes after each row (one token of one head) and each page of a side. All zero in served caches; tests and
// foreign layouts use them.
struct KvPadding {
  int64_t k_row_bytes = 0;
  int64_t v_row_bytes = 0;
  int64_t k_page_bytes = 0;
  int64_t v_page_bytes = 0;
  bool operator==(const KvPadding&) const = default;
};

// Exact bytes of one page of one layer, each term apart.
struct PageBytes {
  int64_t k_payload = 0;
  int64_t v_payload = 0;
  int64_t k_scales = 0;
  int64_t v_scales = 0;
  int64_t padding = 0;
  int64_t total() const { return k_payload + v_payload + k_scales + v_scales + padding; }
  bool operator==(const PageBytes&) const = default;
  PageBytes scaled(int64_t count) const;  // every term times count
};

// Owns every byte offset and size of one layer's cache ("plain-1"): four planes that share page ids,
//   keys    [page][kv head][slot][k_head_dim elements]     dtype of the key side
//   values  [page][kv head][slot][v_head_dim elements]     dtype of the value side
//   k_scale [page][kv head][slot] FP32, only if the key side has dynamic scales
//   v_scale [page][kv head][slot] FP32, only if the value side has dynamic scales
// Pool, planner, kernels, records and docs call these functions; nobody multiplies a KV size by hand.
class KvLayout {
 public:
  // Throws Error{kUnsupported} for a geometry no kernel can serve (non-positive sizes, negative padding, a page above
  // 2 GiB, odd k_head_dim with bias removal) and for a format whose sides and scales do not fit together.
  KvLayout(const KvGeometry& geometry, const KvFormat& format, const KvPadding& padding = {});

  const KvGeometry& geometry() const { return geometry_; }
  const KvFormat& format() const { return format_; }
  const KvPadding& padding() const { return padding_; }
  // "plain-1"
  std::string id() const { return "plain-1"; }

  int64_t k_row_payload_bytes() const;
  int64_t v_row_payload_bytes() const;
  int64_t k_row_stride_bytes() const { return k_row_payload_bytes() + padding_.k_row_bytes; }
  int64_t v_row_stride_bytes() const { return v_row_payload_bytes() + padding_.v_row_bytes; }
  int64_t k_head_stride_bytes() const { return geometry_.page_size * k_row_stride_bytes(); }
  int64_t v_head_stride_bytes() const { return geometry_.page_size * v_row_stride_bytes(); }
  int64_t k_page_stride_bytes() const;
  int64_t v_page_stride_bytes() const;

  bool has_k_scales() const { return format_.key.scale == ScaleKind::kDynamic; }
  bool has_v_scales() const { return format_.value.scale == ScaleKind::kDynamic; }
  // FP32 scales per page of one side: num_kv_heads * page_size.
  int64_t page_scale_elems() const { return geometry_.num_kv_heads * geometry_.page_size; }

  // Byte offset of a row inside its plane.
  int64_t k_row_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const;
  int64_t v_row_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const;
  // Index of a row's scale inside its scale plane, in FP32 elements (the same for keys and values).
  int64_t scale_index(int64_t page, int64_t kv_head, int64_t slot) const;

  // Bytes of a plane of num_pages pages.
  int64_t k_plane_bytes(int64_t num_pages) const { return num_pages * k_page_stride_bytes(); }
  int64_t v_plane_bytes(int64_t num_pages) const { return num_pages * v_page_stride_bytes(); }
  int64_t k_scale_plane_bytes(int64_t num_pages) const;
  int64_t v_scale_plane_bytes(int64_t num_pages) const;

  PageBytes page_bytes() const;
  int64_t pages_for(int64_t num_tokens) const;  // whole pages that hold num_tokens slots

  bool operator==(const KvLayout&) const = default;

 private:
  KvGeometry geometry_;
  KvFormat format_;
  KvPadding padding_;
};

}  // namespace asymkv
