#include "asymkv/kv/tiled_layout.h"

#include <cstring>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr int64_t kScaleRowBytes = kTiledPageSize * static_cast<int64_t>(sizeof(float));

void check_head_dim(std::string_view side, int64_t head_dim) {
  if (head_dim > 0 && head_dim % kTiledChannelStep == 0) return;
  throw_unsupported("the tiled layout needs a {} head dim that is a multiple of {}, found {}: use the plain layout",
                    side, kTiledChannelStep, head_dim);
}

void check_dtype(std::string_view side, DType dtype) {
  if (dtype_bytes(dtype) <= 2) return;
  throw_unsupported("the tiled layout stores 8- and 16-bit {}, not {}: use the plain layout", side, dtype_name(dtype));
}

enum class Direction { kToTiled, kToPlain };

// Walks every stored byte of one page once.
struct PageCopy {
  const KvLayerView& plain;
  const TiledLayout& layout;
  const TiledPlanes& tiled;
  Direction direction;

  void bytes(std::byte* plain_at, std::byte* tiled_at, int64_t count) const {
    std::byte* to = direction == Direction::kToTiled ? tiled_at : plain_at;
    const std::byte* from = direction == Direction::kToTiled ? plain_at : tiled_at;
    std::memcpy(to, from, static_cast<size_t>(count));
  }

  void row(int64_t page, int64_t head, int64_t slot) const {
    const KvGeometry& geometry = layout.geometry();
    const int64_t k_bytes = dtype_bytes(layout.format().key.dtype);
    const int64_t v_bytes = dtype_bytes(layout.format().value.dtype);
    std::byte* k_row = plain.k_plane + plain.layout->k_row_offset_bytes(page, head, slot);
    std::byte* v_row = plain.v_plane + plain.layout->v_row_offset_bytes(page, head, slot);
    std::byte* blocks = tiled.blocks.data();
    for (int64_t c = 0; c < geometry.k_head_dim; ++c)
      bytes(k_row + c * k_bytes, blocks + layout.k_offset_bytes(page, head, slot, c), k_bytes);
    for (int64_t c = 0; c < geometry.v_head_dim; ++c)
      bytes(v_row + c * v_bytes, blocks + layout.v_offset_bytes(page, head, slot, c), v_bytes);
    scale(plain.k_scales, layout.has_k_scales(), page, head, slot);
    scale(plain.v_scales, layout.has_v_scales(), page, head, slot);
  }

  void scale(float* plane, bool present, int64_t page, int64_t head, int64_t slot) const {
    if (!present) return;
    const int64_t offset = plane == plain.k_scales ? layout.k_scale_offset_bytes(page, head, slot)
                                                   : layout.v_scale_offset_bytes(page, head, slot);
    auto* at = reinterpret_cast<std::byte*>(plane + plain.layout->scale_index(page, head, slot));
    bytes(at, tiled.scales.data() + offset, static_cast<int64_t>(sizeof(float)));
  }

  void run(int64_t page) const {
    ASYMKV_CHECK(plain.layout != nullptr && plain.layout->geometry() == layout.geometry() &&
                     plain.layout->format() == layout.format(),
                 "plain and tiled layouts describe different caches ({} in the tiled one)", layout.format().id());
    ASYMKV_CHECK(static_cast<int64_t>(tiled.blocks.size()) >= layout.plane_bytes(page + 1) &&
                     static_cast<int64_t>(tiled.scales.size()) >= layout.scale_plane_bytes(page + 1),
                 "page {} outside tiled planes of {} and {} bytes", page, tiled.blocks.size(), tiled.scales.size());
    for (int64_t head = 0; head < layout.geometry().num_kv_heads; ++head)
      for (int64_t slot = 0; slot < layout.geometry().page_size; ++slot) row(page, head, slot);
  }
};

}  // namespace

TiledLayout::TiledLayout(const KvGeometry& geometry, const KvFormat& format) : geometry_(geometry), format_(format) {
  if (geometry.page_size <= 0 || geometry.page_size % kTiledPageSize != 0) {
    throw_unsupported("the tiled layout has pages of a multiple of {} slots, found {}: use the plain layout",
                      kTiledPageSize, geometry.page_size);
  }
  if (geometry.num_kv_heads <= 0) throw_unsupported("KV geometry needs KV heads, found {}", geometry.num_kv_heads);
  check_head_dim("key", geometry.k_head_dim);
  check_head_dim("value", geometry.v_head_dim);
  check_dtype("keys", format.key.dtype);
  check_dtype("values", format.value.dtype);
}

int64_t TiledLayout::k_block_bytes() const {
  const int64_t bytes = dtype_bytes(format_.key.dtype);
  return kTiledPageSize * tiled_channels(bytes, geometry_.k_head_dim) * bytes;
}
int64_t TiledLayout::v_block_bytes() const {
  const int64_t bytes = dtype_bytes(format_.value.dtype);
  return kTiledPageSize * tiled_channels(bytes, geometry_.v_head_dim) * bytes;
}
int64_t TiledLayout::scale_block_bytes() const {
  return kScaleRowBytes * ((has_k_scales() ? 1 : 0) + (has_v_scales() ? 1 : 0));
}

int64_t TiledLayout::k_offset_bytes(int64_t page, int64_t kv_head, int64_t slot, int64_t channel) const {
  return block_of(page, kv_head, slot) * block_bytes() +
         tiled_k_offset(dtype_bytes(format_.key.dtype), slot % kTiledPageSize, channel);
}
int64_t TiledLayout::v_offset_bytes(int64_t page, int64_t kv_head, int64_t slot, int64_t channel) const {
  return block_of(page, kv_head, slot) * block_bytes() + k_block_bytes() +
         tiled_v_offset(dtype_bytes(format_.value.dtype), slot % kTiledPageSize, channel);
}
int64_t TiledLayout::k_scale_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const {
  return block_of(page, kv_head, slot) * scale_block_bytes() +
         slot % kTiledPageSize * static_cast<int64_t>(sizeof(float));
}
int64_t TiledLayout::v_scale_offset_bytes(int64_t page, int64_t kv_head, int64_t slot) const {
  return k_scale_offset_bytes(page, kv_head, slot) + (has_k_scales() ? kScaleRowBytes : 0);
}

void plain_to_tiled(const KvLayerView& plain, const TiledLayout& layout, int64_t page, const TiledPlanes& tiled) {
  PageCopy{plain, layout, tiled, Direction::kToTiled}.run(page);
}
void tiled_to_plain(const TiledPlanes& tiled, const TiledLayout& layout, int64_t page, const KvLayerView& plain) {
  PageCopy{plain, layout, tiled, Direction::kToPlain}.run(page);
}

}  // namespace asymkv
