#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "asymkv/kv/cache.h"
#include "asymkv/kv/format.h"
#include "asymkv/kv/layout.h"

namespace asymkv {

// Element order of "tiled-1": inside the block of one (page, KV head) each side lies in the order in which the
// fragments of mma.m16n8k16 want it, so that one 16-byte load per lane feeds a whole fragment. Lane = 4 * group +
// thread of the PTX fragment tables (PTX ISA, "Matrix Fragments for mma.m16n8k16"). The functions are constexpr: host
// and device code share them.
inline constexpr int64_t kTiledPageSize = 16;     // the 16 rows of a fragment are the slots of a page
inline constexpr int64_t kTiledChannelStep = 16;  // head dims are multiples of it: the channels of one k-step
inline constexpr int64_t kTiledLaneBytes = 16;
inline constexpr int64_t kTiledStepBytes = 32 * kTiledLaneBytes;  // one load of a warp

// 16-bit keys: [k-step of 16 channels][lane][a0 a1 a2 a3], A[row = slot][column = channel].
constexpr int64_t tiled_k16_offset(int64_t slot, int64_t channel) {
  const int64_t c = channel % 16;
  const int64_t lane = slot % 8 * 4 + c % 8 / 2;
  const int64_t word = slot / 8 + 2 * (c / 8);
  return channel / 16 * kTiledStepBytes + lane * kTiledLaneBytes + word * 4 + c % 2 * 2;
}

// 16-bit values: [tile of 16 channels][lane][a0 a1 a2 a3], A[row = channel][column = slot].
constexpr int64_t tiled_v16_offset(int64_t slot, int64_t channel) {
  const int64_t c = channel % 16;
  const int64_t lane = c % 8 * 4 + slot % 8 / 2;
  const int64_t word = c / 8 + 2 * (slot / 8);
  return channel / 16 * kTiledStepBytes + lane * kTiledLaneBytes + word * 4 + slot % 2 * 2;
}

// 8-bit keys: [pair of k-steps][lane][k-step, slot half][4 consecutive channels]. The channels of a k-step are permuted
// against the fragment table; queries are loaded in the same permutation.
constexpr int64_t tiled_k8_offset(int64_t slot, int64_t channel) {
  const int64_t c = channel % 16;
  const int64_t lane = slot % 8 * 4 + c / 4;
  const int64_t word = channel / 16 % 2 * 2 + slot / 8;
  return channel / 32 * kTiledStepBytes + lane * kTiledLaneBytes + word * 4 + c % 4;
}

// 8-bit values: [pair of tiles][lane][tile, channel half][slots 2t, 2t + 1, 2t + 8, 2t + 9].
constexpr int64_t tiled_v8_offset(int64_t slot, int64_t channel) {
  const int64_t c = channel % 16;
  const int64_t lane = c % 8 * 4 + slot % 8 / 2;
  const int64_t word = channel / 16 % 2 * 2 + c / 8;
  return channel / 32 * kTiledStepBytes + lane * kTiledLaneBytes + word * 4 + slot % 2 + slot / 8 * 2;
}

constexpr int64_t tiled_k_offset(int64_t elem_bytes, int64_t slot, int64_t channel) {
  return elem_bytes == 1 ? tiled_k8_offset(slot, channel) : tiled_k16_offset(slot, channel);
}
constexpr int64_t tiled_v_offset(int64_t elem_bytes, int64_t slot, int64_t channel) {
  return elem_bytes == 1 ? tiled_v8_offset(slot, channel) : tiled_v16_offset(slot, channel);
}

// Channels that a side's block has room for: an 8-bit load covers 32 of them. Bytes of channels behind the head dim are
// never written and never used.
constexpr int64_t tiled_channels(int64_t elem_bytes, int64_t head_dim) {
  const int64_t step = elem_bytes == 1 ? 2 * kTiledChannelStep : kTiledChannelStep;
  return (head_dim + step - 1) / step * step;
}

// Owns every byte of one layer's cache in "tiled-1": two planes that share page ids,
//   blocks  [page][kv head][keys of 16 slots | values of 16 slots]           each side in its fragment order
//   scales  [page][kv head][key scales of 16 slots | value scales of 16 slots] FP32, only the sides with dynamic scales
// A block is a multiple of 512 bytes and is moved by one bulk copy; so is a scale block (64 or 128 bytes). A page of 64
// slots is four pages of 16 one after the other: slot s of page i lies in page 4 * i + s / 16 of a plane with pages
// of 16.
class TiledLayout {
 public:
  // Throws Error{kUnsupported} if page size is no multiple of 16, a head dim is no multiple of 16, or a side is 32 bits
  // wide.
  TiledLayout(const KvGeometry& geometry, const KvFormat& format);

  std::string id() const { return "tiled-1"; }
  const KvGeometry& geometry() const { return geometry_; }
  const KvFormat& format() const { return format_; }
  bool has_k_scales() const { return format_.key.scale == ScaleKind::kDynamic; }
  bool has_v_scales() const { return format_.value.scale == ScaleKind::kDynamic; }

  int64_t k_block_bytes() const;
  int64_t v_block_bytes() const;
  int64_t block_bytes() const { return k_block_bytes() + v_block_bytes(); }
  int64_t scale_block_bytes() const;
  int64_t page_stride_bytes() const { return blocks_per_page() * block_bytes(); }
  int64_t scale_page_stride_bytes() const { return blocks_per_page() * scale_block_bytes(); }
  int64_t plane_bytes(int64_t num_pages) const { return num_pages * page_stride_bytes(); }
  int64_t scale_plane_bytes(int64_t num_pages) const { return num_pages * scale_page_stride_bytes(); }

  // Byte offset of one element in the block plane.
  int64_t k_offset_bytes(int64_t page, int64_t kv_head, int64_t slot, int64_t channel) const;
  int64_t v_offset_bytes(int64_t page, int64_t kv_head, int64_t slot, int64_t channel) const;
  // Byte offset of a row's scale in the scale plane; only for a side that has dynamic scales.
  int64_t k_scale_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const;
  int64_t v_scale_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const;

 private:
  int64_t blocks_per_page() const { return geometry_.page_size / kTiledPageSize * geometry_.num_kv_heads; }
  // Index of the block that holds a slot.
  int64_t block_of(int64_t page, int64_t kv_head, int64_t slot) const {
    return page * blocks_per_page() + slot / kTiledPageSize * geometry_.num_kv_heads + kv_head;
  }

  KvGeometry geometry_;
  KvFormat format_;
};

// Mutable planes of one layer in "tiled-1", in host memory. `scales` may be empty without dynamic scales.
struct TiledPlanes {
  std::span<std::byte> blocks;
  std::span<std::byte> scales;
};

// Copies one page between the plain layout and the tiled one, payload and scales, without decoding a byte.
// Both layouts must have the same geometry and format (Error{kInternal}).
void plain_to_tiled(const KvLayerView& plain, const TiledLayout& layout, int64_t page, const TiledPlanes& tiled);
void tiled_to_plain(const TiledPlanes& tiled, const TiledLayout& layout, int64_t page, const KvLayerView& plain);

}  // namespace asymkv
