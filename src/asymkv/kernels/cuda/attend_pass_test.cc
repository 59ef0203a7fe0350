#include "asymkv/kernels/cuda/attend_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

using ::testing::ElementsAre;

KvFormat format(const char* name, DType native = DType::kBF16) {
  return parse_kv_format(name, native, ScaleKind::kDynamic);
}

// A cache that is only looked at, and sequences in it.
class Cache {
 public:
  explicit Cache(const KvFormat& stored) : layout_({2, 64, 64, 32}, stored) {}
  AttendSequence sequence(int64_t row, int64_t stored, std::span<const PageId> pages) {
    AttendSequence s;
    s.query_row = row;
    s.num_queries = 1;
    s.query_pos = stored - 1;
    s.stored_len = stored;
    s.cache.layout = &layout_;
    s.cache.tiled_blocks = &plane_;
    s.pages = pages;
    return s;
  }

 private:
  KvLayout layout_;
  std::byte plane_{};
};

AttendParams params_of(std::span<const AttendSequence> sequences, DType rows = DType::kF32) {
  AttendParams params;
  params.num_q_heads = 14;
  params.num_kv_heads = 2;
  params.k_head_dim = params.v_head_dim = 64;
  params.fresh_dtype = DType::kBF16;
  params.row_dtype = rows;
  params.sequences = sequences;
  params.pass = 7;
  return params;
}

bool no_prompt(const AttendSequence&) {
  return false;
}

AttendSequence prompt(int64_t row, int64_t tokens) {
  static const float data = 0.0F;
  AttendSequence s;
  s.query_row = row;
  s.num_queries = s.num_fresh = tokens;
  s.fresh_k = s.fresh_v = &data;
  return s;
}

const std::vector<PageId> kPages = {PageId{4}, PageId{9}, PageId{2}};

TEST(AttendPass, PutsSequencesOfACacheTogether) {
  Cache a(format("native")), b(format("k8v8"));
  const std::vector<AttendSequence> sequences = {a.sequence(0, 40, kPages), b.sequence(1, 33, kPages),
                                                 a.sequence(2, 70, kPages), b.sequence(3, 1, kPages)};
  const AttendPass pass = make_attend_pass(params_of(sequences, DType::kBF16), no_prompt);
  EXPECT_TRUE(pass.single);
  ASSERT_EQ(pass.parts.size(), 1U);
  const AttendPart& part = pass.parts.front();
  EXPECT_THAT(part.rows, ElementsAre(0, 2, 1, 3));
  EXPECT_FALSE(part.in_order);
  EXPECT_FALSE(part.each_in_place);
  ASSERT_EQ(part.groups.size(), 2U);
  EXPECT_EQ(part.groups[1].first_row, 2);
  EXPECT_THAT(part.groups[0].batch.seq_lens, ElementsAre(40, 70));
  EXPECT_THAT(part.groups[0].table, ElementsAre(4, 9, 4, 9, 2));
  EXPECT_THAT(part.groups[0].batch.page_rows, ElementsAre(0, 2));
  EXPECT_THAT(part.groups[1].table, ElementsAre(4, 9, 4));
  EXPECT_TRUE(part.groups[1].batch.side_by_side);
  EXPECT_FALSE(part.groups[1].batch.overlaps);
  const AttendPass alone = make_attend_pass(params_of(std::span(sequences).first(1), DType::kBF16), no_prompt);
  EXPECT_FALSE(alone.parts.front().groups[0].batch.side_by_side);
  EXPECT_TRUE(alone.parts.front().groups[0].batch.overlaps);
  std::vector<AttendSequence> chunks = {a.sequence(0, 40, kPages), b.sequence(3, 33, kPages)};
  chunks[0].num_queries = 3;
  const AttendPass prefill = make_attend_pass(params_of(chunks, DType::kBF16), no_prompt);
  for (const AttendGroup& group : prefill.parts.front().groups) EXPECT_FALSE(group.batch.side_by_side);
}

TEST(AttendPass, RowsInOrderAreTakenAsTheyLie) {
  Cache a(format("native")), b(format("k8v8"));
  const std::vector<AttendSequence> sequences = {a.sequence(5, 40, kPages), a.sequence(6, 70, kPages),
                                                 b.sequence(7, 33, kPages)};
  const AttendPass pass = make_attend_pass(params_of(sequences, DType::kBF16), no_prompt);
  EXPECT_TRUE(pass.parts.front().in_order);
  EXPECT_TRUE(pass.parts.front().each_in_place);
  EXPECT_EQ(pass.num_rows, 8);
  EXPECT_THAT(pass.rows, ElementsAre(5, 6, 7));
}

TEST(AttendPass, QueriesOfFp32RowsHaveTheTypeOf16BitKeys) {
  Cache bf16(format("native")), narrow(format("k8v8")), f16(format("native", DType::kF16));
  const std::vector<AttendSequence> sequences = {bf16.sequence(0, 40, kPages), narrow.sequence(1, 40, kPages),
                                                 f16.sequence(2, 40, kPages)};
  const AttendPass pass = make_attend_pass(params_of(sequences), no_prompt);
  ASSERT_EQ(pass.parts.size(), 2U);
  EXPECT_TRUE(pass.parts[0].bf16);
  EXPECT_THAT(pass.parts[0].rows, ElementsAre(0));
  EXPECT_FALSE(pass.parts[1].bf16);
  EXPECT_THAT(pass.parts[1].rows, ElementsAre(1, 2));
}

TEST(AttendPass, FreshRowsArePackedAndPromptsLeftOut) {
  Cache a(format("k8v8"));
  AttendSequence chunk = prompt(1, 20);
  chunk.query_pos = chunk.stored_len = 40;
  chunk.cache = a.sequence(0, 40, kPages).cache;
  chunk.pages = kPages;
  const std::vector<AttendSequence> sequences = {a.sequence(0, 40, kPages), chunk, prompt(21, 300), prompt(321, 3)};
  const AttendPass pass =
      make_attend_pass(params_of(sequences, DType::kBF16), [](const AttendSequence& s) { return s.num_fresh >= 256; });
  EXPECT_FALSE(pass.single);  // the chunk reads what is stored, and its own rows
  EXPECT_THAT(pass.prompts, ElementsAre(2U));
  ASSERT_EQ(pass.parts.size(), 2U);
  const AttendGroup& fresh = pass.parts[1].groups.front();
  EXPECT_TRUE(fresh.is_fresh);
  EXPECT_THAT(fresh.sequences, ElementsAre(1U, 3U));
  EXPECT_THAT(fresh.table, ElementsAre(0, 1, 2));
  EXPECT_THAT(fresh.batch.page_rows, ElementsAre(0, 2));
  EXPECT_THAT(fresh.batch.query_pos, ElementsAre(0, 0));
  EXPECT_EQ(fresh.most_tokens, 20);
}

TEST(AttendPass, ServesTheCallsOfItsNumberAlone) {
  Cache a(format("native"));
  std::vector<AttendSequence> sequences = {a.sequence(0, 40, kPages)};
  AttendParams params = params_of(sequences);
  const AttendPass pass = make_attend_pass(params, no_prompt);
  EXPECT_TRUE(pass.serves(params));
  params.window = 512;  // another kind of layer of the same pass
  EXPECT_FALSE(pass.serves(params));
  params.window = 0, params.pass = 8;
  EXPECT_FALSE(pass.serves(params));
  params.pass = 0;
  EXPECT_FALSE(make_attend_pass(params, no_prompt).serves(params));
  params.pass = 7;
  sequences[0].stored_len = 41;
  EXPECT_THROW(pass.serves(params), Error);
}

}  // namespace
}  // namespace asymkv::cuda
