#pragma once

#include <cstdint>
#include <vector>

namespace asymkv {

// Index of a page inside every plane of a cache.
enum class PageId : int32_t {};
constexpr int64_t page_index(PageId id) {
  return static_cast<int64_t>(id);
}

// Hands out page ids with reference counts (a page may be shared by several sequences that have a prefix in common).
// Not thread-safe: one owner.
class PagePool {
 public:
  explicit PagePool(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(ref_count_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // A page with reference count 1. Throws Error{kResourceExhausted} with both counts when none is free.
  PageId allocate();
  void retain(PageId id);
  // Drops one reference; the page is free again at zero. Throws Error{kInternal} on a page nobody holds.
  void release(PageId id);
  int64_t ref_count(PageId id) const;

  // Free list and counts must agree. Throws Error{kInternal} naming the page that does not.
  void check_integrity() const;

 private:
  void check_id(PageId id) const;
  std::vector<int32_t> ref_count_;
  std::vector<PageId> free_;  // last in, first out
};

}  // namespace asymkv
