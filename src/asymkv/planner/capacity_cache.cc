#include "asymkv/planner/capacity_cache.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv {
namespace {

int64_t product(int64_t a, int64_t b, std::string_view what) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result))
    throw_unsupported("{} is too large: {} times {} leaves 64 bits", what, a, b);
  return result;
}

// Bytes of one page of one layer, as the memory's own layout has them; what the payload does not fill is padding.
PageBytes page_in(KvMemory memory, const KvLayout& layout) {
  PageBytes page = layout.page_bytes();
  if (memory == KvMemory::kHost) return page;
  const TiledLayout tiled(layout.geometry(), layout.format());
  page.padding = tiled.page_stride_bytes() - page.k_payload - page.v_payload;
  return page;
}

PageBytes sum(const PageBytes& a, const PageBytes& b) {
  return {a.k_payload + b.k_payload, a.v_payload + b.v_payload, a.k_scales + b.k_scales, a.v_scales + b.v_scales,
          a.padding + b.padding};
}

// One slot's share of a page: every row of a page has the same bytes.
PageBytes slot_of(const PageBytes& page, int64_t page_size) {
  const PageBytes slot{page.k_payload / page_size, page.v_payload / page_size, page.k_scales / page_size,
                       page.v_scales / page_size, page.padding / page_size};
  ASYMKV_CHECK(slot.scaled(page_size) == page, "a page of {} bytes is not {} equal slots", page.total(), page_size);
  return slot;
}

void check_options(const ModelShape& shape, const CachePlanOptions& options) {
  if (options.page_size < 1 || options.page_size > kMaxPlannedPageSize) {
    throw_usage("page size {}: give 1 to {} slots", options.page_size, kMaxPlannedPageSize);
  }
  if (options.tensor_parallel < 1) throw_usage("tensor parallelism {}: give 1 rank or more", options.tensor_parallel);
  if (shape.verdict == ShapeVerdict::kRefuse) throw_unsupported("{}", shape.reason);
  if (shape.num_q_heads % options.tensor_parallel != 0) {
    throw_unsupported("{} query heads do not divide over {} ranks", shape.num_q_heads, options.tensor_parallel);
  }
}

CacheGroup plan_group(const LayerGroup& layers, const CachePlanOptions& options) {
  const RankHeads heads = heads_of_rank(layers.num_kv_heads, options.tensor_parallel);
  const KvGeometry geometry{heads.num_kv_heads, layers.k_head_dim, layers.v_head_dim, options.page_size};
  CacheGroup group{.kind = layers.kind,
                   .num_layers = layers.num_layers,
                   .layout = KvLayout(geometry, options.format),
                   .page = {},
                   .window = layers.kind == LayerKind::kSliding ? layers.window : 0,
                   .replicas = heads.replicas};
  const PageBytes page = page_in(options.memory, group.layout);
  product(page.total(), group.num_layers, "a page of all layers");
  group.page = page.scaled(group.num_layers);
  if (layers.kind == LayerKind::kSliding && options.windows == WindowPages::kSeparate) {
    group.window_pages = group.layout.pages_for(std::min(layers.window, kMaxPlannedTokens));
    product(group.page.total(), group.window_pages, "the window of all layers");
  }
  return group;
}

int64_t state_of_rank(const LayerGroup& layers, DType dtype, int64_t num_ranks) {
  if (layers.state_elems % num_ranks != 0) {
    throw_unsupported("a recurrent state of {} elements a layer does not divide over {} ranks", layers.state_elems,
                      num_ranks);
  }
  const int64_t layer_bytes = product(layers.state_elems / num_ranks, dtype_bytes(dtype), "the recurrent state");
  return product(layer_bytes, layers.num_layers, "the recurrent state");
}

}  // namespace

std::string_view window_pages_name(WindowPages pages) {
  return pages == WindowPages::kSeparate ? "separate" : "unified";
}

RankHeads heads_of_rank(int64_t num_kv_heads, int64_t num_ranks) {
  if (num_kv_heads % num_ranks == 0) return {num_kv_heads / num_ranks, 1};
  if (num_ranks % num_kv_heads == 0) return {1, num_ranks / num_kv_heads};
  throw_unsupported("{} KV heads do not divide over {} ranks, and {} ranks are no multiple of {} heads", num_kv_heads,
                    num_ranks, num_ranks, num_kv_heads);
}

int64_t CacheGroup::fixed_scale_bytes() const {
  const auto per_side = num_layers * static_cast<int64_t>(sizeof(float));
  const KvFormat& format = layout.format();
  return (format.key.scale == ScaleKind::kFixed ? per_side : 0) +
         (format.value.scale == ScaleKind::kFixed ? per_side : 0);
}

PageBytes CachePlan::growing_page() const {
  PageBytes page;
  for (const CacheGroup& group : groups) {
    if (group.grows()) page = sum(page, group.page);
  }
  return page;
}

int64_t CachePlan::bytes_per_token() const {
  return slot_of(growing_page(), page_size).total();
}

int64_t CachePlan::fixed_scale_bytes() const {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) bytes += group.fixed_scale_bytes();
  return bytes;
}

int64_t CachePlan::fixed_bytes_per_sequence() const {
  int64_t bytes = state_bytes;
  for (const CacheGroup& group : groups) bytes += group.page.scaled(group.window_pages).total();
  return bytes;
}

int64_t CachePlan::pages_for(int64_t num_tokens) const {
  for (const CacheGroup& group : groups) {
    if (group.grows()) return group.layout.pages_for(num_tokens);
  }
  return 0;
}

SequenceBytes CachePlan::sequence(int64_t num_tokens) const {
  if (num_tokens < 0 || num_tokens > kMaxPlannedTokens) {
    throw_usage("{} tokens: give 0 to {}", num_tokens, kMaxPlannedTokens);
  }
  const PageBytes page = growing_page();
  const PageBytes slot = slot_of(page, page_size);
  const int64_t paged = product(pages_for(num_tokens), page.total(), "a sequence");
  SequenceBytes bytes;
  bytes.slots = slot.scaled(num_tokens);
  bytes.partial_last_page = paged - bytes.slots.total();
  bytes.state = state_bytes;
  for (const CacheGroup& group : groups) {
    if (!group.grows())
      bytes.window += group.page.scaled(group.layout.pages_for(std::min(num_tokens, group.window))).total();
  }
  return bytes;
}

void CachePlan::add_draft(const CachePlan& draft) {
  ASYMKV_CHECK(draft.page_size == page_size, "pages of {} and {} slots", page_size, draft.page_size);
  groups.insert(groups.end(), draft.groups.begin(), draft.groups.end());
  state_bytes += draft.state_bytes;
}

CachePlan plan_cache(const ModelShape& shape, const CachePlanOptions& options) {
  check_options(shape, options);
  CachePlan plan;
  plan.page_size = options.page_size;
  for (const LayerGroup& layers : shape.groups) {
    if (layers.kind == LayerKind::kLatent) {
      throw_unsupported("latent layers store one tensor, which has no keys and values to give formats to");
    }
    if (layers.kind == LayerKind::kLinear) {
      plan.state_bytes += state_of_rank(layers, shape.native_dtype, options.tensor_parallel);
    } else {
      plan.groups.push_back(plan_group(layers, options));
    }
  }
  return plan;
}

int64_t native_bytes_per_token(const ModelShape& shape) {
  const KvFormat native = parse_kv_format("native", shape.native_dtype, ScaleKind::kDynamic);
  int64_t bytes = 0;
  for (const LayerGroup& layers : shape.groups) {
    if (layers.kind == LayerKind::kFull) {
      const KvLayout layout({layers.num_kv_heads, layers.k_head_dim, layers.v_head_dim, 1}, native);
      bytes += layout.page_bytes().scaled(layers.num_layers).total();
    } else if (layers.kind == LayerKind::kLatent) {
      bytes += layers.num_layers * layers.latent_dim * dtype_bytes(shape.native_dtype);
    }
  }
  return bytes;
}

}  // namespace asymkv
