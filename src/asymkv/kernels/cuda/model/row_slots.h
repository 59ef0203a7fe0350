#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace asymkv::cuda {

// Which rows of a matrix a table of `capacity` slots holds. Slots are given in the order in which rows are asked for; a
// table without room for the rows of a call starts over.
class RowSlots {
 public:
  explicit RowSlots(int64_t capacity) : capacity_(capacity) {}

  struct Answer {
    std::vector<int32_t> slots;    // of each row asked for
    std::vector<int32_t> missing;  // rows to be put into the slots from first_missing on
    int64_t first_missing = 0;
  };
  // Nothing, and nothing is changed, if the table is too small for these rows.
  std::optional<Answer> find(std::span<const int32_t> rows);

 private:
  int64_t capacity_ = 0;
  std::unordered_map<int32_t, int32_t> slot_of_;
};

}  // namespace asymkv::cuda
