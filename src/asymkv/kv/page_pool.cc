#include "asymkv/kv/page_pool.h"

#include "asymkv/base/error.h"

namespace asymkv {

PagePool::PagePool(int64_t num_pages) {
  ASYMKV_CHECK(num_pages >= 0 && num_pages <= INT32_MAX, "num_pages is {}", num_pages);
  ref_count_.assign(static_cast<size_t>(num_pages), 0);
  for (int64_t i = num_pages - 1; i >= 0; --i) free_.push_back(static_cast<PageId>(i));
}

void PagePool::check_id(PageId id) const {
  ASYMKV_CHECK(page_index(id) >= 0 && page_index(id) < num_pages(), "page {} outside a pool of {} pages",
               page_index(id), num_pages());
}

PageId PagePool::allocate() {
  if (free_.empty()) {
    throw_error(ErrorCode::kResourceExhausted, "the KV pool is full: all {} pages are in use", num_pages());
  }
  const PageId id = free_.back();
  free_.pop_back();
  ref_count_[static_cast<size_t>(id)] = 1;
  return id;
}

void PagePool::retain(PageId id) {
  check_id(id);
  int32_t& count = ref_count_[static_cast<size_t>(id)];
  ASYMKV_CHECK(count > 0, "page {} is free and cannot be retained", page_index(id));
  ++count;
}

void PagePool::release(PageId id) {
  check_id(id);
  int32_t& count = ref_count_[static_cast<size_t>(id)];
  ASYMKV_CHECK(count > 0, "page {} is released more often than it was taken", page_index(id));
  if (--count == 0) free_.push_back(id);
}

int64_t PagePool::ref_count(PageId id) const {
  check_id(id);
  return ref_count_[static_cast<size_t>(id)];
}

void PagePool::check_integrity() const {
  std::vector<bool> listed(ref_count_.size(), false);
  for (const PageId id : free_) {
    check_id(id);
    ASYMKV_CHECK(!listed[static_cast<size_t>(id)], "page {} is twice in the free list", page_index(id));
    listed[static_cast<size_t>(id)] = true;
  }
  for (size_t i = 0; i < ref_count_.size(); ++i) {
    ASYMKV_CHECK(listed[i] == (ref_count_[i] == 0), "page {} has {} references and is {}in the free list", i,
                 ref_count_[i], listed[i] ? "" : "not ");
  }
}

}  // namespace asymkv
