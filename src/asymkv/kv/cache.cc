#include "asymkv/kv/cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/device/device_copy.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv {
namespace {

constexpr std::byte kPoison{0xff};

void check_scale(float scale, int64_t layer, std::string_view side) {
  if (std::isfinite(scale) && scale > 0.0F) return;
  throw_usage("fixed scale of layer {} {} is {}: scales must be finite and positive", layer, side, scale);
}

}  // namespace

float KvLayerView::k_scale(int64_t page, int64_t kv_head, int64_t slot) const {
  if (k_scales != nullptr) return k_scales[layout->scale_index(page, kv_head, slot)];
  return layout->format().key.scale == ScaleKind::kFixed ? fixed_scales.key : 1.0F;
}

float KvLayerView::v_scale(int64_t page, int64_t kv_head, int64_t slot) const {
  if (v_scales != nullptr) return v_scales[layout->scale_index(page, kv_head, slot)];
  return layout->format().value.scale == ScaleKind::kFixed ? fixed_scales.value : 1.0F;
}

KvCache::KvCache(const KvLayout& layout, KvCacheConfig config)
    : layout_(layout), config_(std::move(config)), pool_(config_.num_pages) {
  ASYMKV_CHECK(config_.num_layers >= 0, "num_layers is {}", config_.num_layers);
  check_scales();
  check_transforms();
  planes_.resize(static_cast<size_t>(config_.num_layers));
  if (config_.memory == KvMemory::kHost) {
    allocate_host();
  } else {
    allocate_device();
  }
  k_counters_.resize(planes_.size());
  v_counters_.resize(planes_.size());
}

void KvCache::allocate_host() {
  const int64_t scale_elems = config_.num_pages * layout_.page_scale_elems();
  try {
    for (LayerPlanes& planes : planes_) {
      planes.k.assign(static_cast<size_t>(layout_.k_plane_bytes(config_.num_pages)), kPoison);
      planes.v.assign(static_cast<size_t>(layout_.v_plane_bytes(config_.num_pages)), kPoison);
      const float poison = std::numeric_limits<float>::quiet_NaN();
      if (layout_.has_k_scales()) planes.k_scales.assign(static_cast<size_t>(scale_elems), poison);
      if (layout_.has_v_scales()) planes.v_scales.assign(static_cast<size_t>(scale_elems), poison);
    }
  } catch (const std::bad_alloc&) {
    throw_no_memory();
  } catch (const std::length_error&) {  // more than a vector can ever hold
    throw_no_memory();
  }
}

void KvCache::allocate_device() {
  const TiledLayout tiled(layout_.geometry(), layout_.format());
  for (LayerPlanes& planes : planes_) {
    planes.blocks = DeviceBuffer(tiled.plane_bytes(config_.num_pages));
    planes.scales = DeviceBuffer(tiled.scale_plane_bytes(config_.num_pages));
    planes.blocks.fill(static_cast<uint8_t>(kPoison));
    planes.scales.fill(static_cast<uint8_t>(kPoison));
  }
}

std::string KvCache::layout_id() const {
  if (config_.memory == KvMemory::kHost) return layout_.id();
  return TiledLayout(layout_.geometry(), layout_.format()).id();
}

void KvCache::throw_no_memory() const {
  throw_error(ErrorCode::kResourceExhausted, "no memory for a KV cache of {} layers with {} pages of {} bytes each",
              config_.num_layers, config_.num_pages, layout_.page_bytes().total());
}

void KvCache::check_scales() const {
  const bool k_fixed = layout_.format().key.scale == ScaleKind::kFixed;
  const bool v_fixed = layout_.format().value.scale == ScaleKind::kFixed;
  if (!k_fixed && !v_fixed) return;
  const auto num_given = static_cast<int64_t>(config_.fixed_scales.size());
  if (num_given != config_.num_layers) {
    const std::string first_missing =
        num_given < config_.num_layers ? fmt::format(", layer {} has none", num_given) : "";
    throw_usage("KV format {} needs a fixed scale of {} for each of {} layers: {} given{}", layout_.format().id(),
                k_fixed && v_fixed ? "keys and values" : (k_fixed ? "keys" : "values"), config_.num_layers, num_given,
                first_missing);
  }
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerScales& scales = config_.fixed_scales[static_cast<size_t>(layer)];
    if (k_fixed) check_scale(scales.key, layer, "keys");
    if (v_fixed) check_scale(scales.value, layer, "values");
  }
}

void KvCache::check_transforms() const {
  if (!layout_.format().key.prebias) return;
  if (static_cast<int64_t>(config_.transforms.size()) != config_.num_layers) {
    throw_usage("KV format {} needs the vector to remove for each layer: {} given for {} layers", layout_.format().id(),
                config_.transforms.size(), config_.num_layers);
  }
  for (const KeyTransform& transform : config_.transforms) {
    const KvGeometry& geometry = layout_.geometry();
    ASYMKV_CHECK(transform.num_kv_heads == geometry.num_kv_heads && transform.head_dim == geometry.k_head_dim,
                 "transform of {} x {} for keys of {} x {}", transform.num_kv_heads, transform.head_dim,
                 geometry.num_kv_heads, geometry.k_head_dim);
  }
}

size_t KvCache::checked(int64_t layer_idx) const {
  ASYMKV_CHECK(layer_idx >= 0 && layer_idx < config_.num_layers, "layer {} of a cache of {} layers", layer_idx,
               config_.num_layers);
  return static_cast<size_t>(layer_idx);
}

KvLayerView KvCache::layer(int64_t layer_idx) {
  LayerPlanes& planes = planes_[checked(layer_idx)];
  KvLayerView view;
  view.layout = &layout_;
  view.num_pages = config_.num_pages;
  if (config_.memory == KvMemory::kHost) {
    view.k_plane = planes.k.data();
    view.v_plane = planes.v.data();
  }
  view.tiled_blocks = planes.blocks.data();
  view.tiled_scales = planes.scales.data();
  view.k_scales = planes.k_scales.empty() ? nullptr : planes.k_scales.data();
  view.v_scales = planes.v_scales.empty() ? nullptr : planes.v_scales.data();
  if (!config_.fixed_scales.empty()) view.fixed_scales = config_.fixed_scales[static_cast<size_t>(layer_idx)];
  if (layout_.format().key.prebias) view.transform = &config_.transforms[static_cast<size_t>(layer_idx)];
  return view;
}

void KvCache::copy_page(PageId from, PageId to) {
  ASYMKV_CHECK(pool_.ref_count(from) > 0 && pool_.ref_count(to) > 0, "copy between pages {} and {} that nobody holds",
               page_index(from), page_index(to));
  const auto copy = [&](auto& plane, int64_t stride) {
    if (plane.empty()) return;
    const auto source = plane.begin() + page_index(from) * stride;
    std::copy(source, source + stride, plane.begin() + page_index(to) * stride);
  };
  const auto copy_on_device = [&](const DeviceBuffer& plane) {
    if (plane.bytes() == 0) return;
    const int64_t stride = plane.bytes() / config_.num_pages;
    copy_within(plane, page_index(from) * stride, page_index(to) * stride, stride);
  };
  for (LayerPlanes& planes : planes_) {
    copy(planes.k, layout_.k_page_stride_bytes());
    copy(planes.v, layout_.v_page_stride_bytes());
    copy(planes.k_scales, layout_.page_scale_elems());
    copy(planes.v_scales, layout_.page_scale_elems());
    copy_on_device(planes.blocks);
    copy_on_device(planes.scales);
  }
}

CacheInventory KvCache::inventory() const {
  CacheInventory inventory;
  inventory.num_pages = config_.num_pages;
  inventory.num_layers = config_.num_layers;
  const PageBytes page = layout_.page_bytes();
  const int64_t k_padding = layout_.k_page_stride_bytes() - page.k_payload;
  for (const LayerPlanes& planes : planes_) {
    // What was allocated, measured. In host memory each side's planes are its own, so that bytes that are missing from
    // one and too many in the other show; a tiled block holds both.
    if (config_.memory == KvMemory::kHost) {
      inventory.planes.k_payload += std::ssize(planes.k) - config_.num_pages * k_padding;
      inventory.planes.v_payload += std::ssize(planes.v) - config_.num_pages * (page.padding - k_padding);
      inventory.planes.padding += config_.num_pages * page.padding;
    } else {
      const int64_t payload = config_.num_pages * (page.k_payload + page.v_payload);
      inventory.planes.k_payload += config_.num_pages * page.k_payload;
      inventory.planes.v_payload += config_.num_pages * page.v_payload;
      inventory.planes.padding += planes.blocks.bytes() - payload;
    }
    // On the device both sides' scales share a plane.
    const int64_t tiled_k_scales = layout_.has_k_scales() && layout_.has_v_scales() ? planes.scales.bytes() / 2
                                   : layout_.has_k_scales()                         ? planes.scales.bytes()
                                                                                    : 0;
    inventory.planes.k_scales += static_cast<int64_t>(planes.k_scales.size() * sizeof(float)) + tiled_k_scales;
    inventory.planes.v_scales +=
        static_cast<int64_t>(planes.v_scales.size() * sizeof(float)) + planes.scales.bytes() - tiled_k_scales;
  }
  const bool k_fixed = layout_.format().key.scale == ScaleKind::kFixed;
  const bool v_fixed = layout_.format().value.scale == ScaleKind::kFixed;
  const auto per_side = config_.num_layers * static_cast<int64_t>(sizeof(float));
  inventory.fixed_scale_bytes = (k_fixed ? per_side : 0) + (v_fixed ? per_side : 0);
  return inventory;
}

SequencePages::~SequencePages() {
  truncate(0);
}

SequencePages::SequencePages(SequencePages&& other) noexcept
    : cache_(other.cache_), pages_(std::move(other.pages_)), num_tokens_(std::exchange(other.num_tokens_, 0)) {
  other.pages_.clear();
}

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  std::swap(cache_, other.cache_);
  std::swap(pages_, other.pages_);
  std::swap(num_tokens_, other.num_tokens_);
  return *this;
}

// The partial last page, if another sequence holds it too, is replaced by a copy of its own.
void SequencePages::own_last_page() {
  PagePool& pool = cache_->pool();
  const PageId shared = pages_.back();
  const PageId own = pool.allocate();
  cache_->copy_page(shared, own);
  pool.release(shared);
  pages_.back() = own;
}

std::vector<int64_t> SequencePages::append(int64_t count) {
  const KvLayout& layout = cache_->layout();
  const int64_t page_size = layout.geometry().page_size;
  PagePool& pool = cache_->pool();
  // A pool never holds more than 2^31 pages: the second bound keeps the sums below from overflowing.
  ASYMKV_CHECK(count >= 0 && count <= INT64_MAX / 4, "append of {} tokens", count);
  const bool writes_shared_page = count > 0 && num_tokens_ % page_size != 0 && pool.ref_count(pages_.back()) > 1;
  const int64_t new_pages = layout.pages_for(num_tokens_ + count) - static_cast<int64_t>(pages_.size());
  const int64_t needed = new_pages + (writes_shared_page ? 1 : 0);
  if (needed > pool.num_free()) {
    throw_error(ErrorCode::kResourceExhausted, "{} tokens need {} more pages, {} of {} are free", count, needed,
                pool.num_free(), pool.num_pages());
  }
  if (writes_shared_page) own_last_page();
  for (int64_t i = 0; i < new_pages; ++i) pages_.push_back(pool.allocate());
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(count));
  for (int64_t token = num_tokens_; token < num_tokens_ + count; ++token) {
    slots.push_back(page_index(pages_[static_cast<size_t>(token / page_size)]) * page_size + token % page_size);
  }
  num_tokens_ += count;
  return slots;
}

void SequencePages::truncate(int64_t num_tokens) {
  ASYMKV_CHECK(num_tokens >= 0 && num_tokens <= num_tokens_, "truncate to {} of {} tokens", num_tokens, num_tokens_);
  const auto keep = static_cast<size_t>(cache_->layout().pages_for(num_tokens));
  while (pages_.size() > keep) {
    cache_->pool().release(pages_.back());
    pages_.pop_back();
  }
  num_tokens_ = num_tokens;
}

SequencePages SequencePages::fork() const {
  SequencePages copy(*cache_);
  const int64_t page_size = cache_->layout().geometry().page_size;
  const auto whole = static_cast<size_t>(num_tokens_ / page_size);
  for (size_t i = 0; i < whole; ++i) {
    cache_->pool().retain(pages_[i]);
    copy.pages_.push_back(pages_[i]);
  }
  copy.num_tokens_ = static_cast<int64_t>(whole) * page_size;
  if (copy.num_tokens_ == num_tokens_) return copy;
  copy.append(num_tokens_ - copy.num_tokens_);
  cache_->copy_page(pages_[whole], copy.pages_[whole]);
  return copy;
}

}  // namespace asymkv
