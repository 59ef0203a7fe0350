#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace asymkv::cuda {

// Consecutive tokens that go to consecutive slots of one page. A whole page (16 tokens) is written as one block.
struct alignas(16) WriteRun {
  int32_t token_begin = 0;
  int32_t count = 0;
  int32_t page = 0;
  int32_t slot_begin = 0;
  bool operator==(const WriteRun&) const = default;
};

struct WritePlan {
  std::vector<WriteRun> runs;
  int64_t num_tokens = 0;     // of the call, skipped ones included
  int64_t num_written = 0;    // slot >= 0
  int64_t num_whole() const;  // runs that fill a page
  // As a launch takes them: whole pages first, each kind in the order of its tokens.
  std::vector<WriteRun> launch_order() const;
  std::string describe() const;
};

// slots: page * 16 + place of each token, -1 to skip it. Throws Error{kUsage} for a slot outside [-1, num_slots) and
// for a slot named twice.
WritePlan plan_write(std::span<const int64_t> slots, int64_t num_slots);

}  // namespace asymkv::cuda
