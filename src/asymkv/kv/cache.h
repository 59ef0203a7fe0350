#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "asymkv/device/device.h"
#include "asymkv/kv/codec.h"
#include "asymkv/kv/key_transform.h"
#include "asymkv/kv/layout.h"
#include "asymkv/kv/page_pool.h"

namespace asymkv {

// Fixed scales of one layer, one FP32 per side; only the 8-bit sides with ScaleKind::kFixed read theirs.
struct LayerScales {
  float key = 1.0F;
  float value = 1.0F;
};

// Where a cache's bytes lie: in host memory in the layout of kv/layout.h, or in device memory in that of
// kv/tiled_layout.h.
enum class KvMemory { kHost, kDevice };

// What a kernel sees of one layer of one cache, owned by KvCache. Plane pointers of absent scale planes, and those of
// the other memory, are null. `transform` (host) is null unless the key format removes a vector.
struct KvLayerView {
  const KvLayout* layout = nullptr;
  int64_t num_pages = 0;  // pages in every plane: ids outside [0, num_pages) are refused
  std::byte* k_plane = nullptr;
  std::byte* v_plane = nullptr;
  float* k_scales = nullptr;
  float* v_scales = nullptr;
  LayerScales fixed_scales;
  const KeyTransform* transform = nullptr;
  std::byte* tiled_blocks = nullptr;  // KvMemory::kDevice: the two planes of TiledLayout
  std::byte* tiled_scales = nullptr;

  // Scale of one stored row (1 for wide sides), in host memory.
  float k_scale(int64_t page, int64_t kv_head, int64_t slot) const;
  float v_scale(int64_t page, int64_t kv_head, int64_t slot) const;
};

// How a cache is written and read where that differs from other caches of its format: no part of what is stored.
struct CacheUse {
  // 8-bit type that queries are rounded to (round_row) before they meet stored keys; nothing: they stay as they are.
  std::optional<DType> query_dtype;
  bool control_kernels = false;  // served by Backends::control instead of Backends::attention
};

struct KvCacheConfig {
  int64_t num_layers = 0;
  int64_t num_pages = 0;
  std::vector<LayerScales> fixed_scales;  // one a layer if a side has fixed scales, else empty
  std::string scale_source = "none";      // "none", "dynamic", "unit", "checkpoint", "calibrated:SHA256"
  std::vector<KeyTransform> transforms;   // one a layer if the key format removes a vector, else empty
  CacheUse use;
  KvMemory memory = KvMemory::kHost;
};

// Bytes that a cache really holds, term by term; equal to layout.page_bytes() times pages and layers, plus fixed
// scales.
struct CacheInventory {
  int64_t num_pages = 0;
  int64_t num_layers = 0;
  PageBytes planes;  // summed over pages and layers
  int64_t fixed_scale_bytes = 0;
  int64_t total() const { return planes.total() + fixed_scale_bytes; }
};

// Owns the planes of all layers of one cache, its page pool, scales and key transforms. New memory is filled with 0xff
// (NaN in every float type), so that a kernel that reads an unwritten slot is caught.
class KvCache {
 public:
  // Throws Error{kUsage} if scales or transforms do not fit the format (missing, wrong count, non-finite or
  // non-positive, naming layer and side), Error{kResourceExhausted} if the memory is not to be had, Error{kUnsupported}
  // for device memory in a build without CUDA or a geometry that TiledLayout refuses.
  KvCache(const KvLayout& layout, KvCacheConfig config);

  // Expires with the cache, and is owned by no other one (owner_before), also once it has expired.
  std::weak_ptr<const void> life() const { return life_; }
  const KvLayout& layout() const { return layout_; }
  // Of the bytes as they lie in memory: KvLayout's id, or TiledLayout's.
  std::string layout_id() const;
  const KvCacheConfig& config() const { return config_; }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  KvLayerView layer(int64_t layer_idx);
  CacheInventory inventory() const;

  // Counters of what writers saw, per layer and side.
  SideCounters& k_counters(int64_t layer_idx) { return k_counters_[checked(layer_idx)]; }
  SideCounters& v_counters(int64_t layer_idx) { return v_counters_[checked(layer_idx)]; }

  // Copies every byte and scale of one page to another, in all layers.
  void copy_page(PageId from, PageId to);

 private:
  struct LayerPlanes {
    std::vector<std::byte> k;
    std::vector<std::byte> v;
    std::vector<float> k_scales;
    std::vector<float> v_scales;
    DeviceBuffer blocks;
    DeviceBuffer scales;
  };
  void allocate_host();
  void allocate_device();
  size_t checked(int64_t layer_idx) const;  // throws Error{kInternal} outside [0, num_layers)
  void check_scales() const;
  void check_transforms() const;
  [[noreturn]] void throw_no_memory() const;

  std::shared_ptr<const void> life_ = std::make_shared<char>();
  KvLayout layout_;
  KvCacheConfig config_;
  PagePool pool_;
  std::vector<LayerPlanes> planes_;
  std::vector<SideCounters> k_counters_;
  std::vector<SideCounters> v_counters_;
};

// The pages of one sequence in one cache, and how many tokens they hold. Releases its pages on destruction.
class SequencePages {
 public:
  explicit SequencePages(KvCache& cache) : cache_(&cache) {}
  ~SequencePages();
  SequencePages(SequencePages&& other) noexcept;
  SequencePages& operator=(SequencePages&& other) noexcept;
  SequencePages(const SequencePages&) = delete;
  SequencePages& operator=(const SequencePages&) = delete;

  KvCache& cache() const { return *cache_; }
  std::span<const PageId> pages() const { return pages_; }
  int64_t num_tokens() const { return num_tokens_; }

  // Makes room for tokens [num_tokens, num_tokens + count), and returns their slots (page * page_size + place). A
  // partial last page that another sequence also holds (after truncate) is copied first, so that nobody else's tokens
  // change. Throws Error{kResourceExhausted} without changing anything if the pool cannot give enough pages.
  std::vector<int64_t> append(int64_t count);
  // Drops tokens from the end, releasing whole pages.
  void truncate(int64_t num_tokens);
  // A second sequence that shares this one's whole pages (reference counted) and copies the partial last page's bytes,
  // so that both may go on writing.
  SequencePages fork() const;

 private:
  void own_last_page();
  KvCache* cache_;
  std::vector<PageId> pages_;
  int64_t num_tokens_ = 0;
};

}  // namespace asymkv
