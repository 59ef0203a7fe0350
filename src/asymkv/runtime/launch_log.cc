#include "asymkv/runtime/launch_log.h"

namespace asymkv {

void LoggedAttention::add_launch(const KvLayout& layout, int64_t group, Phase phase,
                                 std::optional<DType> query_dtype) const {
  const KvFormat& format = layout.format();
  const auto id = std::make_tuple(format.key.id(), format.value.id(), format.scale(), layout.geometry().k_head_dim,
                                  group, phase, query_dtype);
  int64_t*& counter = known_[id];
  if (counter == nullptr) {
    const Support support = inner_->supports(layout.geometry(), format, group, phase);
    counter = &launches_[{
        std::string(name()), format.key.id(), format.value.id(), std::string(scale_kind_name(format.scale())),
        query_dtype ? std::string(dtype_name(*query_dtype)) : "", std::string(phase_name(phase)), support.kernel}];
  }
  ++*counter;
}

void LoggedAttention::write_kv(const WriteKvParams& params) const {
  inner_->write_kv(params);
  for (const WriteTarget& target : params.targets) add_launch(*target.cache.layout, 1, Phase::kWrite, std::nullopt);
}

void LoggedAttention::attend(const AttendParams& params) const {
  inner_->attend(params);
  for (const AttendSequence& sequence : params.sequences) {
    if (sequence.stored_len == 0) continue;
    const Phase phase = sequence.num_queries == 1 && sequence.num_fresh == 0 ? Phase::kDecode : Phase::kMixed;
    add_launch(*sequence.cache.layout, params.num_q_heads / params.num_kv_heads, phase, sequence.query_dtype);
  }
}

}  // namespace asymkv
