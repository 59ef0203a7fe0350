#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/kv/cache.h"
#include "asymkv/kv/layout.h"
#include "asymkv/planner/model_shape.h"

namespace asymkv {

// Longest sequence that is planned for: far above any model, and far from where byte counts leave 64 bits.
inline constexpr int64_t kMaxPlannedTokens = int64_t{1} << 32;
inline constexpr int64_t kMaxPlannedPageSize = 256;  // slots

// How layers with a window keep their tokens.
enum class WindowPages {
  kSeparate,  // pages of their own, reused as the window moves on: at most pages_for(window) of them a sequence
  kUnified,   // in the pages of the full layers, every token: what this project's engine does
};
std::string_view window_pages_name(WindowPages pages);  // "separate", "unified"

struct CachePlanOptions {
  KvFormat format;
  int64_t page_size = 16;       // slots, 1 to kMaxPlannedPageSize
  int64_t tensor_parallel = 1;  // ranks that share the heads
  WindowPages windows = WindowPages::kSeparate;
  KvMemory memory = KvMemory::kHost;  // whose layout: plain-1 or tiled-1
};

// Layers of one geometry, on one rank.
struct CacheGroup {
  LayerKind kind = LayerKind::kFull;
  int64_t num_layers = 0;
  KvLayout layout;           // with the KV heads of one rank
  PageBytes page;            // of all layers together, as their memory lies
  int64_t window_pages = 0;  // pages that a sequence fills at most; 0: they grow with its tokens
  int64_t window = 0;        // tokens, 0: none
  int64_t replicas = 1;      // ranks that hold the same KV head

  bool grows() const { return window_pages == 0; }
  int64_t fixed_scale_bytes() const;  // one FP32 per layer and side with fixed scales, as CacheInventory counts them
};

// What one sequence takes on one rank; the terms add up to total().
struct SequenceBytes {
  PageBytes slots;                // of the tokens that it holds in growing pages
  int64_t partial_last_page = 0;  // of the slots behind them in its last growing page
  int64_t window = 0;             // pages of layers with a window
  int64_t state = 0;              // recurrent state
  int64_t total() const { return slots.total() + partial_last_page + window + state; }
};

// A cache of one model (or of a model and its draft, which share page ids) on one rank: what the pool will allocate.
struct CachePlan {
  std::vector<CacheGroup> groups;
  int64_t page_size = 0;    // slots
  int64_t state_bytes = 0;  // of one sequence

  PageBytes growing_page() const;               // one page id of all growing groups
  int64_t bytes_per_token() const;              // of the growing groups
  int64_t fixed_scale_bytes() const;            // of the whole cache
  int64_t fixed_bytes_per_sequence() const;     // of a sequence as long as every window or longer
  int64_t pages_for(int64_t num_tokens) const;  // of the growing groups
  // Throws Error{kUsage} for a negative count or one above kMaxPlannedTokens.
  SequenceBytes sequence(int64_t num_tokens) const;
  // The draft model's layers on the same pages: every page id has room for both. Page sizes must agree.
  void add_draft(const CachePlan& draft);
};

// Throws Error{kUnsupported} for a model whose shape is refused (with the shape's reason), for a layout that KvLayout
// or TiledLayout refuses, for heads that do not divide over the ranks and for sizes that leave 64 bits; Error{kUsage}
// for a page size or number of ranks out of range.
CachePlan plan_cache(const ModelShape& shape, const CachePlanOptions& options);

// KV heads of one rank. More ranks than heads: each head is held by num_ranks / num_kv_heads ranks. Throws
// Error{kUnsupported} naming both numbers where neither divides the other.
struct RankHeads {
  int64_t num_kv_heads = 0;
  int64_t replicas = 1;
};
RankHeads heads_of_rank(int64_t num_kv_heads, int64_t num_ranks);

// Bytes of a token in the model's own type, all ranks together, latent layers included; growing layers only.
int64_t native_bytes_per_token(const ModelShape& shape);

}  // namespace asymkv
