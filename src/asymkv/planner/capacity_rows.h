#pragma once

#include <string_view>

#include "asymkv/base/json.h"
#include "asymkv/planner/capacity_cache.h"

namespace asymkv {

// What a kernel row must have been measured with to say anything about a plan.
struct RowsKey {
  CacheGroup group;         // geometry of one rank, page size, format and scale policy
  int64_t num_q_heads = 0;  // of one rank
  std::string_view layout;  // id of the layout that the kernel family reads
  std::string_view device;
};

// The rows of a `bench kernel` answer that were measured with exactly that: layout, format and scale policy of either
// side, query and KV heads, head size, page size and device. Each as it stands in the file, less its record; an empty
// array if there is none, and times stay unmeasured. Throws Error{kBadInput} naming `origin` and the field for an
// answer of another form.
Json measured_rows(const Json& bench, std::string_view origin, const RowsKey& key);

}  // namespace asymkv
