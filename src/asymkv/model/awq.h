#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/model/safetensors.h"

namespace asymkv {

// TensorInfo::stored_type of AWQ matrices: "AWQ-INT4-G128".
inline constexpr std::string_view kAwqStoredType = "AWQ-INT4-G";
inline std::string awq_stored_type(int64_t group_size) {
  return fmt::format("{}{}", kAwqStoredType, group_size);
}

// A matrix of 4-bit weights as AutoAWQ publishes it (version "gemm", quant_method "awq" of config.json): weight [o, i]
// is (q - z) * s with q and z in 0..15 and s FP16, z and s shared by group_size neighbours i. Eight neighbours o share
// an I32 word, lowest bits first in the order 0, 2, 4, 6, 1, 3, 5, 7.
//
// Q5_0 holds the same values without loss: its d * (q5 - 16) is s * (q - z) for q5 = q - z + 16, which lies in 1..31.
class AwqMatrix {
 public:
  // `name` is the module's, without ".qweight". qweight [in, out / 8] and qzeros [in / group, out / 8] are I32, scales
  // [in / group, out] F16; whole blocks of 32 lie in a group. Throws Error{kBadInput} or Error{kUnsupported} naming
  // `origin`, the tensor and the value; the spans of the entries must outlive the matrix.
  AwqMatrix(const std::string& name, const SafetensorsEntry& qweight, const SafetensorsEntry& qzeros,
            const SafetensorsEntry& scales, std::string_view origin);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  int64_t group_size() const { return group_size_; }
  int64_t stored_bytes() const { return static_cast<int64_t>(qweight_.size() + qzeros_.size() + scales_.size()); }

  // Row [0, out()) as in() / 32 Q5_0 blocks, which is the size of `blocks`.
  void copy_row_as_q5_0(int64_t row, std::span<std::byte> blocks) const;

 private:
  int64_t in_ = 0;
  int64_t out_ = 0;
  int64_t group_size_ = 0;
  std::span<const std::byte> qweight_, qzeros_, scales_;
};

}  // namespace asymkv
