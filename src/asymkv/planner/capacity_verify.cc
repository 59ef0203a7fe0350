#include "asymkv/planner/capacity_verify.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/number.h"
#include "asymkv/device/device.h"

namespace asymkv {
namespace {

constexpr int64_t kAllocatorBooks = int64_t{64} << 10;
// What a device's driver hands out at once: a large buffer takes whole blocks, small ones share one. Seen on Hopper
// with CUDA 13, documented nowhere.
constexpr int64_t kDeviceBlockBytes = int64_t{2} << 20;
constexpr std::string_view kSlotsTerm = "slots";
constexpr std::string_view kPagesTerm = "pages";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasurable = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kMeasurable = false;
#else
constexpr bool kMeasurable = true;
#endif
#else
constexpr bool kMeasurable = true;
#endif

// "NAME:   123 kB" in a file of /proc, in bytes; nothing where there is no such line.
std::optional<int64_t> proc_bytes(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string word, number;
  while (file >> word) {
    if (word != name) continue;
    file >> number;
    const std::optional<int64_t> kib = parse_number<int64_t>(number);
    return kib ? std::optional(*kib * 1024) : std::nullopt;
  }
  return std::nullopt;
}

// Bytes that the allocator holds and nobody uses: an allocation may come from there and map nothing.
int64_t free_heap_bytes() {
#if defined(__GLIBC__)
  return static_cast<int64_t>(::mallinfo2().fordblks);
#else
  return 0;
#endif
}

struct ProcessBytes {
  std::optional<int64_t> mapped = proc_bytes("/proc/self/status", "VmData:");
  int64_t free_heap = free_heap_bytes();
  std::optional<int64_t> resident = proc_bytes("/proc/self/smaps_rollup", "Rss:");
};

// From here on every plane larger than a memory page is a mapping of its own, given back when it is freed: what the
// process grows by is what was asked for, not what the allocator had left.
void map_every_plane() {
#if defined(__GLIBC__)
  static_cast<void>(::mallopt(M_MMAP_THRESHOLD, static_cast<int>(::sysconf(_SC_PAGESIZE))));
  static_cast<void>(::mallopt(M_MMAP_MAX, 1 << 20));
  static_cast<void>(::malloc_trim(0));
#endif
}

// Buffers of a group. On the device keys and values share one, and so do their scales.
int64_t num_planes(const CacheGroup& group, KvMemory memory) {
  const bool k_scales = group.layout.has_k_scales(), v_scales = group.layout.has_v_scales();
  if (memory == KvMemory::kDevice) return group.num_layers * (k_scales || v_scales ? 2 : 1);
  return group.num_layers * (2 + (k_scales ? 1 : 0) + (v_scales ? 1 : 0));
}

int64_t group_pages(const CacheGroup& group, int64_t num_pages) {
  return group.grows() ? num_pages : std::min(num_pages, group.window_pages);
}

// Appends tokens until the pool is empty; how many slots it gave.
int64_t hand_out_slots(KvCache& cache) {
  SequencePages sequence(cache);
  while (cache.pool().num_free() > 0) sequence.append(cache.layout().geometry().page_size);
  return sequence.num_tokens();
}

// Memory that is promised but not there ends the process, or another one, without a word.
void check_available(int64_t planned) {
  const std::optional<int64_t> available = proc_bytes("/proc/meminfo", "MemAvailable:");
  if (!available || planned <= *available) return;
  throw_error(ErrorCode::kResourceExhausted,
              "the pool to allocate has {} bytes, but {} are available on this machine: allocate fewer pages", planned,
              *available);
}

using Caches = std::vector<std::unique_ptr<KvCache>>;

// The pools to allocate, one for each group of the plan.
struct PlannedPools {
  std::vector<KvCacheConfig> configs;
  int64_t bytes = 0;
  int64_t num_planes = 0;
};

PlannedPools plan_pools(const CachePlan& plan, int64_t num_pages, KvMemory memory) {
  PlannedPools pools;
  for (const CacheGroup& group : plan.groups) {
    const int64_t pages = group_pages(group, num_pages);
    pools.configs.push_back(verify_config(group, pages, memory));
    pools.bytes += group.page.scaled(pages).total();
    pools.num_planes += num_planes(group, memory);
  }
  return pools;
}

Caches allocate(const CachePlan& plan, const PlannedPools& pools) {
  Caches caches;
  for (size_t i = 0; i < pools.configs.size(); ++i) {
    caches.push_back(std::make_unique<KvCache>(plan.groups[i].layout, pools.configs[i]));
  }
  return caches;
}

Caches allocate_host(const CachePlan& plan, const PlannedPools& pools, VerifyResult& result) {
  check_available(pools.bytes);
  ProcessGrowth growth;
  growth.planned = pools.bytes;
  growth.tolerance =
      kAllocatorBooks + pools.num_planes * (::sysconf(_SC_PAGESIZE) + static_cast<int64_t>(alignof(std::max_align_t)));
  map_every_plane();
  const ProcessBytes before;
  Caches caches = allocate(plan, pools);
  const ProcessBytes after;
  if (kMeasurable && before.mapped && after.mapped && before.resident && after.resident) {
    growth.mapped = *after.mapped - *before.mapped + before.free_heap - after.free_heap;
    growth.resident = *after.resident - *before.resident;
    result.growth = growth;
  }
  return caches;
}

// What the device's driver gave out since it had `before` bytes free.
DeviceGrowth growth_since(int64_t before, std::string term, int64_t planned, int64_t num_buffers) {
  return {std::move(term), planned, before - device_memory().free_bytes, num_buffers * kDeviceBlockBytes};
}

Caches allocate_device(const CachePlan& plan, const PlannedPools& pools, VerifyResult& result) {
  DeviceBuffer(1).fill(0);  // the context and what a first fill loads are there before anything is counted
  const int64_t before = device_memory().free_bytes;
  Caches caches = allocate(plan, pools);
  result.device.push_back(growth_since(before, "caches", pools.bytes, pools.num_planes));
  return caches;
}

void measure_staging(int64_t staging_bytes, VerifyResult& result) {
  const int64_t before = device_memory().free_bytes;
  const DeviceBuffer keys(staging_bytes / 2), values(staging_bytes - staging_bytes / 2);
  result.device.push_back(growth_since(before, "staging", staging_bytes, 2));
}

}  // namespace

bool ProcessGrowth::ok() const {
  return std::abs(mapped - planned) <= tolerance && std::abs(resident - planned) <= tolerance;
}

bool DeviceGrowth::ok() const {
  return std::abs(found - planned) <= tolerance;
}

bool VerifyResult::ok() const {
  return std::ranges::all_of(lines, &VerifyLine::ok) && (!growth || growth->ok()) &&
         std::ranges::all_of(device, &DeviceGrowth::ok);
}

int64_t VerifyResult::difference_bytes() const {
  int64_t bytes = 0;
  for (const VerifyLine& line : lines) {
    if (!line.term.ends_with(kSlotsTerm) && !line.term.ends_with(kPagesTerm))
      bytes += std::abs(line.planned - line.found);
  }
  return bytes;
}

KvCacheConfig verify_config(const CacheGroup& group, int64_t num_pages, KvMemory memory) {
  KvCacheConfig config;
  config.num_layers = group.num_layers;
  config.num_pages = num_pages;
  config.memory = memory;
  const auto layers = static_cast<size_t>(group.num_layers);
  const KvFormat& format = group.layout.format();
  if (format.scale() == ScaleKind::kFixed) config.fixed_scales.assign(layers, LayerScales{});
  if (format.key.prebias) {
    const KvGeometry& geometry = group.layout.geometry();
    KeyTransform transform;
    transform.num_kv_heads = geometry.num_kv_heads;
    transform.head_dim = geometry.k_head_dim;
    transform.removed.assign(static_cast<size_t>(geometry.num_kv_heads * geometry.k_head_dim), 0.0F);
    transform.pair_class.assign(transform.removed.size() / 2, PairClass::kKept);
    config.transforms.assign(layers, transform);
  }
  return config;
}

std::vector<VerifyLine> compare_inventory(const CacheGroup& group, int64_t num_pages, const CacheInventory& inventory,
                                          int64_t num_slots) {
  const PageBytes planned = group.page.scaled(num_pages);
  const PageBytes& found = inventory.planes;
  const std::string kind(layer_kind_name(group.kind));
  const auto line = [&](std::string_view term, int64_t planned_value, int64_t found_value) {
    return VerifyLine{fmt::format("{} {}", kind, term), planned_value, found_value};
  };
  return {line("payload K", planned.k_payload, found.k_payload),
          line("payload V", planned.v_payload, found.v_payload),
          line("scales K", planned.k_scales, found.k_scales),
          line("scales V", planned.v_scales, found.v_scales),
          line("padding", planned.padding, found.padding),
          line("fixed scales", group.fixed_scale_bytes(), inventory.fixed_scale_bytes),
          line(kPagesTerm, num_pages, inventory.num_pages),
          line(kSlotsTerm, num_pages * group.layout.geometry().page_size, num_slots)};
}

VerifyResult verify_allocation(const CachePlan& plan, int64_t num_pages, KvMemory memory, int64_t staging_bytes) {
  VerifyResult result;
  const PlannedPools pools = plan_pools(plan, num_pages, memory);
  const auto caches =
      memory == KvMemory::kHost ? allocate_host(plan, pools, result) : allocate_device(plan, pools, result);
  if (memory == KvMemory::kDevice && staging_bytes > 0) measure_staging(staging_bytes, result);
  for (size_t i = 0; i < caches.size(); ++i) {
    const CacheInventory inventory = caches[i]->inventory();
    const auto lines = compare_inventory(plan.groups[i], group_pages(plan.groups[i], num_pages), inventory,
                                         hand_out_slots(*caches[i]));
    result.lines.insert(result.lines.end(), lines.begin(), lines.end());
  }
  return result;
}

}  // namespace asymkv
