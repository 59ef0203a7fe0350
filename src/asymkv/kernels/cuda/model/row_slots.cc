#include "asymkv/kernels/cuda/model/row_slots.h"

#include <unordered_set>

namespace asymkv::cuda {

std::optional<RowSlots::Answer> RowSlots::find(std::span<const int32_t> rows) {
  std::unordered_set<int32_t> missing;
  for (const int32_t row : rows) {
    if (!slot_of_.contains(row)) missing.insert(row);
  }
  if (std::ssize(slot_of_) + std::ssize(missing) > capacity_) {
    const std::unordered_set<int32_t> distinct(rows.begin(), rows.end());
    if (std::ssize(distinct) > capacity_) return std::nullopt;
    slot_of_.clear();
  }
  Answer answer;
  answer.first_missing = std::ssize(slot_of_);
  for (const int32_t row : rows) {
    const auto [known, is_new] = slot_of_.try_emplace(row, static_cast<int32_t>(slot_of_.size()));
    if (is_new) answer.missing.push_back(row);
    answer.slots.push_back(known->second);
  }
  return answer;
}

}  // namespace asymkv::cuda
