#pragma once

#include "asymkv/ops/attention.h"

namespace asymkv {

// The oracle: double precision, one thread, one line per line of the definition, never optimised. It attends over
// decode(encode(x)), so codec error and kernel error have separate bounds; angles of removed vectors are exact.
class RefAttention : public AttentionBackend {
 public:
  std::string_view name() const override { return "ref"; }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override;
  void write_kv(const WriteKvParams& params) const override;
  void attend(const AttendParams& params) const override;
};

}  // namespace asymkv
