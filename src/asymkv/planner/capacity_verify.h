#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/planner/capacity_cache.h"

namespace asymkv {

// One quantity, as planned and as found.
struct VerifyLine {
  std::string term;  // "payload K", ...
  int64_t planned = 0;
  int64_t found = 0;
  bool ok() const { return planned == found; }
};

// How much the process grew while the caches were allocated, in bytes. Planes are mapped by whole memory pages, and an
// allocator keeps books: both numbers may differ from the plan by `tolerance`, a memory page and a header for each
// plane and 64 KiB.
struct ProcessGrowth {
  int64_t planned = 0;
  int64_t mapped = 0;    // VmData of /proc/self/status, and what came out of the allocator's free lists
  int64_t resident = 0;  // Rss of /proc/self/smaps_rollup
  int64_t tolerance = 0;
  bool ok() const;
};

// What the device's driver gave out for one thing, in bytes. A driver gives whole blocks of 2 MiB:
// `found` may exceed the plan by `tolerance`, a block for each buffer, and never falls below it by more than that.
struct DeviceGrowth {
  std::string term;  // "caches", "staging"
  int64_t planned = 0;
  int64_t found = 0;
  int64_t tolerance = 0;
  bool ok() const;
};

struct VerifyResult {
  std::vector<VerifyLine> lines;
  std::optional<ProcessGrowth> growth;  // none on the device, off Linux and under a sanitizer, which maps shadows
  std::vector<DeviceGrowth> device;     // none on the host
  bool ok() const;
  // Sum over the byte lines of |planned - found|.
  int64_t difference_bytes() const;
};

// Allocates a cache of num_pages pages for real (window layers: at most the pages of one window), counts what it took
// with KvCache::inventory, hands out every slot, and compares line by line. Fixed scales are 1, removed vectors 0: no
// size depends on them. On the device `staging_bytes` are allocated beside the caches, half for keys, half for values.
// Throws what KvCache and DeviceBuffer throw.
VerifyResult verify_allocation(const CachePlan& plan, int64_t num_pages, KvMemory memory, int64_t staging_bytes = 0);

// The lines of one group against what a cache of num_pages pages holds and how many slots it gave.
std::vector<VerifyLine> compare_inventory(const CacheGroup& group, int64_t num_pages, const CacheInventory& inventory,
                                          int64_t num_slots);

// Configuration of such a cache.
KvCacheConfig verify_config(const CacheGroup& group, int64_t num_pages, KvMemory memory = KvMemory::kHost);

}  // namespace asymkv
