#include "asymkv/kv/cache.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "asymkv/base/error.h"

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
  check_scales();
  check_transforms();
  const auto num_layers = static_cast<size_t>(config_.num_layers);
  const int64_t scale_elems = config_.num_pages * layout_.page_scale_elems();
  try {
    planes_.resize(num_layers);
    for (LayerPlanes& planes : planes_) {
      planes.k.assign(static_cast<size_t>(layout_.k_plane_bytes(config_.num_pages)), kPoison);
      planes.v.assign(static_cast<size_t>(layout_.v_plane_bytes(config_.num_pages)), kPoison);
      const float poison = std::numeric_limits<float>::quiet_NaN();
      if (layout_.has_k_scales()) planes.k_scales.assign(static_cast<size_t>(scale_elems), poison);
      if (layout_.has_v_scales()) planes.v_scales.assign(static_cast<size_t>(scale_elems), poison);
    }
  } catch (const std::bad_alloc&) {
    throw_error(ErrorCode::kResourceExhausted, "no memory for a KV cache of {} bytes ({} pages, {} layers)",
                layout_.page_bytes().scaled(config_.num_pages * config_.num_layers).total(), config_.num_pages,
                config_.num_layers);
  }
  k_counters_.resize(num_layers);
  v_counters_.resize(num_layers);
}

void KvCache::check_scales() const {
  const bool k_fixed = layout_.format().key.scale == ScaleKind::kFixed;
  const bool v_fixed = layout_.format().value.scale == ScaleKind::kFixed;
  if (!k_fixed && !v_fixed) return;
  if (static_cast<int64_t>(config_.fixed_scales.size()) != config_.num_layers) {
    throw_usage("KV format {} with fixed scales needs one scale a layer and side: {} given for {} layers",
                layout_.format().id(), config_.fixed_scales.size(), config_.num_layers);
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

KvLayerView KvCache::layer(int64_t layer_idx) {
  LayerPlanes& planes = planes_.at(static_cast<size_t>(layer_idx));
  KvLayerView view;
  view.layout = &layout_;
  view.num_pages = config_.num_pages;
  view.k_plane = planes.k.data();
  view.v_plane = planes.v.data();
  view.k_scales = planes.k_scales.empty() ? nullptr : planes.k_scales.data();
  view.v_scales = planes.v_scales.empty() ? nullptr : planes.v_scales.data();
  if (!config_.fixed_scales.empty()) view.fixed_scales = config_.fixed_scales[static_cast<size_t>(layer_idx)];
  if (layout_.format().key.prebias) view.transform = &config_.transforms[static_cast<size_t>(layer_idx)];
  return view;
}

CacheInventory KvCache::inventory() const {
  CacheInventory inventory;
  inventory.num_pages = config_.num_pages;
  inventory.num_layers = config_.num_layers;
  const PageBytes page = layout_.page_bytes();
  for (const LayerPlanes& planes : planes_) {
    // What was allocated, measured; the payload share of a plane follows from its page count.
    const auto k_bytes = static_cast<int64_t>(planes.k.size());
    const auto v_bytes = static_cast<int64_t>(planes.v.size());
    inventory.planes.k_payload += config_.num_pages * page.k_payload;
    inventory.planes.v_payload += config_.num_pages * page.v_payload;
    inventory.planes.padding += k_bytes + v_bytes - config_.num_pages * (page.k_payload + page.v_payload);
    inventory.planes.k_scales += static_cast<int64_t>(planes.k_scales.size() * sizeof(float));
    inventory.planes.v_scales += static_cast<int64_t>(planes.v_scales.size() * sizeof(float));
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

std::vector<int64_t> SequencePages::append(int64_t count) {
  const KvLayout& layout = cache_->layout();
  const int64_t page_size = layout.geometry().page_size;
  const int64_t needed = layout.pages_for(num_tokens_ + count) - static_cast<int64_t>(pages_.size());
  PagePool& pool = cache_->pool();
  if (needed > pool.num_free()) {
    throw_error(ErrorCode::kResourceExhausted, "{} tokens need {} more pages, {} of {} are free", count, needed,
                pool.num_free(), pool.num_pages());
  }
  for (int64_t i = 0; i < needed; ++i) pages_.push_back(pool.allocate());
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
  const KvLayout& layout = cache_->layout();
  const auto whole = static_cast<size_t>(num_tokens_ / layout.geometry().page_size);
  for (size_t i = 0; i < whole; ++i) {
    cache_->pool().retain(pages_[i]);
    copy.pages_.push_back(pages_[i]);
  }
  copy.num_tokens_ = static_cast<int64_t>(whole) * layout.geometry().page_size;
  if (copy.num_tokens_ == num_tokens_) return copy;
  copy.append(num_tokens_ - copy.num_tokens_);
  const int64_t from = page_index(pages_[whole]);
  const int64_t to = page_index(copy.pages_[whole]);
  for (int64_t layer = 0; layer < cache_->config().num_layers; ++layer) {
    const KvLayerView view = cache_->layer(layer);
    const auto copy_page = [&](auto* plane, int64_t stride) {
      if (plane != nullptr)
        std::memcpy(plane + to * stride, plane + from * stride, static_cast<size_t>(stride) * sizeof(*plane));
    };
    copy_page(view.k_plane, layout.k_page_stride_bytes());
    copy_page(view.v_plane, layout.v_page_stride_bytes());
    copy_page(view.k_scales, layout.page_scale_elems());
    copy_page(view.v_scales, layout.page_scale_elems());
  }
  return copy;
}

}  // namespace asymkv
