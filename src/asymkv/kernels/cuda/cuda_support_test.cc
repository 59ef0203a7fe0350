#include "asymkv/kernels/cuda/cuda_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace asymkv::cuda {
namespace {

using ::testing::HasSubstr;

const KvGeometry kQwen{8, 128, 128, 16};

KvFormat format(const char* name, ScaleKind scale = ScaleKind::kFixed) {
  return parse_kv_format(name, DType::kBF16, scale);
}

TEST(FamilySupport, NamesTheKernelOfEachPhase) {
  EXPECT_EQ(family_support(kQwen, format("k16v8"), 4, Phase::kDecode).kernel, "cuda-sm90a/decode/bf16_e4m3_d128");
  EXPECT_EQ(family_support(kQwen, format("k16v8", ScaleKind::kDynamic), 4, Phase::kWrite).kernel,
            "cuda-sm90a/write/bf16_e4m3_d128_vd");
  EXPECT_EQ(family_support(kQwen, format("ki8v8-prebias", ScaleKind::kDynamic), 7, Phase::kMixed).kernel,
            "cuda-sm90a/mixed/i8_e4m3_d128_kd_vd_pb");
}

TEST(FamilySupport, NameForgetsTheColumnTilesOfALaunch) {
  DecodeConfig config;
  const std::string name = family_kernel_name(Phase::kDecode, config);
  config.column_tiles = 2;
  EXPECT_EQ(family_kernel_name(Phase::kDecode, config), name);
}

TEST(FamilySupport, RefusesWithASentence) {
  const auto reason = [](const KvGeometry& geometry, const KvFormat& f, int64_t group) {
    const Support support = family_support(geometry, f, group, Phase::kDecode);
    EXPECT_FALSE(support.ok);
    EXPECT_EQ(support.kernel, "");
    return support.reason;
  };
  EXPECT_THAT(reason(kQwen, format("k16v8"), 17), HasSubstr("17"));
  EXPECT_THAT(reason({8, 112, 112, 16}, format("k16v8"), 4), HasSubstr("112"));
  EXPECT_THAT(reason({8, 128, 64, 16}, format("k16v8"), 4), HasSubstr("differ"));
  EXPECT_THAT(reason({8, 128, 128, 24}, format("k16v8"), 4), HasSubstr("24"));
  EXPECT_THAT(reason(kQwen, parse_kv_format("f32/f32", DType::kBF16, ScaleKind::kFixed), 4), HasSubstr("f32"));
}

TEST(ReadsOlderKeysEarly, UnlessSeveralQueriesReadWhatTheirPassStores) {
  AttendSequence step;
  step.num_queries = 1, step.query_pos = 100, step.stored_len = 101;
  EXPECT_TRUE(reads_older_keys_early(step));
  AttendSequence fresh_chunk;
  fresh_chunk.num_queries = fresh_chunk.num_fresh = 512, fresh_chunk.query_pos = fresh_chunk.stored_len = 100;
  EXPECT_TRUE(reads_older_keys_early(fresh_chunk));
  AttendSequence stored_chunk = fresh_chunk;
  stored_chunk.num_fresh = 0, stored_chunk.stored_len = 612;
  EXPECT_FALSE(reads_older_keys_early(stored_chunk));
}

TEST(FamilyRefusal, SaysWhyItCannotRun) {
  EXPECT_EQ(family_refusal({{}, "no driver here"}, 10), "no driver here");
  DeviceList list;
  DeviceInfo& device = list.devices.emplace_back();
  device.name = "Some GPU";
  device.compute_capability = 80;
  EXPECT_THAT(family_refusal(list, 0), HasSubstr("no CUDA kernels"));
  EXPECT_THAT(family_refusal(list, 10), HasSubstr("Some GPU has compute capability 8.0"));
  list.devices.front().compute_capability = 90;
  EXPECT_EQ(family_refusal(list, 10), "");
}

}  // namespace
}  // namespace asymkv::cuda
