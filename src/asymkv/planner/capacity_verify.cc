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

namespace asymkv {
namespace {

constexpr int64_t kAllocatorBooks = int64_t{64} << 10;
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

int64_t num_planes(const CacheGroup& group) {
  return group.num_layers * (2 + (group.layout.has_k_scales() ? 1 : 0) + (group.layout.has_v_scales() ? 1 : 0));
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

}  // namespace

bool ProcessGrowth::ok() const {
  return std::abs(mapped - planned) <= tolerance && std::abs(resident - planned) <= tolerance;
}

bool VerifyResult::ok() const {
  return std::ranges::all_of(lines, &VerifyLine::ok) && (!growth || growth->ok());
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

VerifyResult verify_allocation(const CachePlan& plan, int64_t num_pages, KvMemory memory) {
  VerifyResult result;
  ProcessGrowth growth;
  growth.tolerance = kAllocatorBooks;
  std::vector<KvCacheConfig> configs;
  for (const CacheGroup& group : plan.groups) {
    const int64_t pages = group_pages(group, num_pages);
    configs.push_back(verify_config(group, pages, memory));
    growth.planned += group.page.scaled(pages).total();
    growth.tolerance += num_planes(group) * (::sysconf(_SC_PAGESIZE) + static_cast<int64_t>(alignof(std::max_align_t)));
  }
  if (memory == KvMemory::kHost) check_available(growth.planned);
  std::vector<std::unique_ptr<KvCache>> caches;
  map_every_plane();
  const ProcessBytes before;
  for (size_t i = 0; i < configs.size(); ++i) {
    caches.push_back(std::make_unique<KvCache>(plan.groups[i].layout, std::move(configs[i])));
  }
  const ProcessBytes after;
  if (kMeasurable && memory == KvMemory::kHost && before.mapped && after.mapped && before.resident && after.resident) {
    growth.mapped = *after.mapped - *before.mapped + before.free_heap - after.free_heap;
    growth.resident = *after.resident - *before.resident;
    result.growth = growth;
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    const CacheInventory inventory = caches[i]->inventory();
    const auto lines = compare_inventory(plan.groups[i], group_pages(plan.groups[i], num_pages), inventory,
                                         hand_out_slots(*caches[i]));
    result.lines.insert(result.lines.end(), lines.begin(), lines.end());
  }
  return result;
}

}  // namespace asymkv
