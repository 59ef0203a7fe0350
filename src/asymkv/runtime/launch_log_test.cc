#include "asymkv/runtime/launch_log.h"

#include <gtest/gtest.h>

namespace asymkv {
namespace {

class NoAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return "none"; }
  Support supports(const KvGeometry& /*geometry*/, const KvFormat& format, int64_t /*group*/,
                   Phase phase) const override {
    return {true, format.id() + "/" + std::string(phase_name(phase)), ""};
  }
  void write_kv(const WriteKvParams& /*params*/) const override {}
  void attend(const AttendParams& /*params*/) const override {}
};

AttendSequence reading(const KvLayout& layout, int64_t num_queries, std::optional<DType> query_dtype = {}) {
  AttendSequence sequence;
  sequence.cache.layout = &layout;
  sequence.stored_len = 4;
  sequence.num_queries = num_queries;
  sequence.query_dtype = query_dtype;
  return sequence;
}

// Each sequence is one launch of its own format, phase and query type, whatever stands beside it in the call.
TEST(LaunchLog, CountsEverySequenceOfAMixedCall) {
  const KvGeometry geometry{2, 64, 64};
  const KvLayout native(geometry, parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic));
  const KvLayout narrow(geometry, parse_kv_format("k16v8", DType::kBF16, ScaleKind::kDynamic));
  AttendSequence fresh_alone = reading(native, 1);
  fresh_alone.stored_len = 0;
  const std::vector<AttendSequence> sequences = {
      reading(native, 1), reading(native, 1), reading(narrow, 1), fresh_alone,
      reading(narrow, 3), reading(narrow, 1), reading(native, 1), reading(narrow, 1, DType::kE4M3)};
  AttendParams params;
  params.num_q_heads = 4;
  params.num_kv_heads = 2;
  params.sequences = sequences;
  const LoggedAttention log(std::make_unique<NoAttention>());
  log.attend(params);
  log.attend(params);
  std::map<std::string, int64_t> counts, batches;
  for (const auto& [launch, count] : log.launches()) {
    counts[launch.value + launch.query + launch.phase] = count;
    batches[launch.value] = launch.batch;
  }
  const std::map<std::string, int64_t> expected = {
      {"bf16decode", 6}, {"e4m3decode", 4}, {"e4m3mixed", 2}, {"e4m3e4m3decode", 2}};
  EXPECT_EQ(counts, expected);
  const std::map<std::string, int64_t> expected_batches = {{"bf16", 3}, {"e4m3", 4}};
  EXPECT_EQ(batches, expected_batches) << "sequences of one cache in one call";
  params.sequences = std::span(sequences).first(1);
  log.attend(params);
  EXPECT_EQ(log.launches().size(), 5U) << "a call of another batch is another launch";
}

// What is recorded counts once a replay, for all the layers that the announced call stands for.
TEST(LaunchLog, CountsReplaysAsGraphs) {
  const KvLayout native({2, 64, 64}, parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic));
  const std::vector<AttendSequence> sequences = {reading(native, 1), reading(native, 1)};
  AttendParams params;
  params.num_q_heads = params.num_kv_heads = 2;
  params.sequences = sequences;
  params.recorded = true;
  const LoggedAttention log(std::make_unique<NoAttention>());
  log.attend(params);
  EXPECT_TRUE(log.launches().empty());
  log.replayed(params, 24);
  log.replayed(params, 24);
  ASSERT_EQ(log.launches().size(), 1U);
  const auto& [launch, count] = *log.launches().begin();
  EXPECT_EQ(launch.mode, "graph");
  EXPECT_EQ(launch.batch, 2);
  EXPECT_EQ(count, 96);
}

}  // namespace
}  // namespace asymkv
