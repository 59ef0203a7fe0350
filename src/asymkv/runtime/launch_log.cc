#include "asymkv/runtime/launch_log.h"

namespace asymkv {

int64_t& LoggedAttention::counter(const KvLayout& layout, int64_t group, Phase phase,
                                  std::optional<DType> query_dtype) const {
  const KvFormat& format = layout.format();
  const auto id = std::make_tuple(format.key.id(), format.value.id(), format.scale(), layout.geometry().k_head_dim,
                                  group, phase, query_dtype);
  int64_t*& known = known_[id];
  if (known == nullptr) {
    const Support support = inner_->supports(layout.geometry(), format, group, phase);
    known = &launches_[{
        std::string(name()), format.key.id(), format.value.id(), std::string(scale_kind_name(format.scale())),
        query_dtype ? std::string(dtype_name(*query_dtype)) : "", std::string(phase_name(phase)), support.kernel}];
  }
  return *known;
}

void LoggedAttention::write_kv(const WriteKvParams& params) const {
  inner_->write_kv(params);
  for (const WriteTarget& target : params.targets) ++counter(*target.cache.layout, 1, Phase::kWrite, std::nullopt);
}

void LoggedAttention::attend(const AttendParams& params) const {
  inner_->attend(params);
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  // Sequences of one cache mostly stand together: its counter is looked up once for all of them.
  int64_t* count = nullptr;
  const AttendSequence* counted = nullptr;
  const auto phase_of = [](const AttendSequence& s) {
    return s.num_queries == 1 && s.num_fresh == 0 ? Phase::kDecode : Phase::kMixed;
  };
  for (const AttendSequence& sequence : params.sequences) {
    if (sequence.stored_len == 0) continue;
    const bool same = counted != nullptr && counted->cache.layout == sequence.cache.layout &&
                      counted->query_dtype == sequence.query_dtype && phase_of(*counted) == phase_of(sequence);
    if (!same) count = &counter(*sequence.cache.layout, group, phase_of(sequence), sequence.query_dtype);
    ++*count;
    counted = &sequence;
  }
}

}  // namespace asymkv
