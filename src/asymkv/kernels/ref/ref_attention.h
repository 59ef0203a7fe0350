#pragma once

#include "asymkv/ops/attention.h"

namespace asymkv {

// The oracle: double precision, one thread, one line per line of the definition, never optimised. It attends over
// decode(encode(x)), so codec error and kernel error have separate bounds; angles of removed vectors are exact.
// In FP32 the same lines are the naive twin whose error sets the limits of other families.
class RefAttention : public AttentionBackend {
 public:
  enum class Precision { kDouble, kFloat };
  explicit RefAttention(Precision precision = Precision::kDouble) : precision_(precision) {}

  std::string_view name() const override { return precision_ == Precision::kDouble ? "ref" : "naive-f32"; }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override;
  void write_kv(const WriteKvParams& params) const override;
  void attend(const AttendParams& params) const override;

 private:
  Precision precision_;
};

}  // namespace asymkv
