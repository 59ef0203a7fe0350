#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/ops/attention.h"

namespace asymkv::cuda {

// Sequences of a call that one launch of the decode kernel serves: those in one cache, or those with fresh rows, which
// are packed into pages of their own.
struct AttendGroup {
  std::vector<size_t> sequences;  // of the call; the planes are those of the first one's cache
  std::vector<int32_t> rows;      // of q and out, of each query
  int64_t first_row = 0;          // among the rows of the part
  KvGeometry geometry;
  KvFormat format;
  bool is_fresh = false;
  bool overlaps = false;  // may begin before the kernel before it has ended
  DecodeBatch batch;
  std::vector<int32_t> table;
  int64_t most_tokens = 0;  // of a sequence
  // By the sizes of a layer's removed vector.
  std::vector<std::pair<BiasShape, std::unique_ptr<DevicePlan>>> plans;

  bool is_consecutive() const;  // its rows follow each other
};

// Groups in which a row occurs at most once, with queries of one 16-bit type: rounded and joined together.
struct AttendPart {
  bool bf16 = true;    // else FP16
  bool fresh = false;  // of fresh rows
  std::vector<AttendGroup> groups;
  std::vector<int32_t> rows;             // of all groups
  const int32_t* device_rows = nullptr;  // the same in device memory
  std::shared_ptr<void> own_rows = nullptr;
  bool each_in_place = false;  // the rows of each group follow each other
  bool in_order = false;       // all rows do
};

// What the attention calls of a pass have in common, made from the first of them: no device memory but plans and rows.
struct AttendPass {
  uint64_t number = 0;
  int64_t window = 0;
  std::vector<AttendSequence> sequences;  // of the call it was made from: what later calls are held against
  std::vector<int32_t> rows;              // of all sequences
  int64_t num_rows = 0;                   // one more than the largest of them
  bool narrow = false;                    // BF16 rows
  bool single = false;                    // each row's state has one part
  bool kept = false;                      // AttentionBackend::keep_pass
  std::vector<AttendPart> parts;
  std::vector<size_t> prompts;  // sequences whose fresh rows another kernel takes

  // Whether `params` is a call of this pass. Throws Error{kInternal} for one that claims so and differs.
  bool serves(const AttendParams& params) const;
  // Whether launches for one pass serve the other, but for lengths and pages.
  bool has_rows_of(const AttendPass& other) const;
};

// takes_prompt: of a sequence with fresh rows, whether another kernel attends to them.
AttendPass make_attend_pass(const AttendParams& params, const std::function<bool(const AttendSequence&)>& takes_prompt);

}  // namespace asymkv::cuda
