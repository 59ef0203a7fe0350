#include <gtest/gtest.h>

#include <iostream>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/testing.h"

// Device tests. Without a GPU every test says SKIPPED, and the program prints the mark that makes ctest say so too.
namespace asymkv::cuda {
namespace {

using testing::DecodeCase;
using testing::DecodeOutcome;

bool have_device() {
  static const bool have = [] {
    const DeviceList list = list_devices();
    const bool usable = !list.devices.empty() && list.devices.front().compute_capability == 90;
    if (!usable) std::cout << "ASYMKV_TEST_SKIPPED_ENTIRELY: " << list.why_none << "\n";
    return usable;
  }();
  return have;
}

struct NamedFormat {
  const char* name;
  ScaleKind scale;
  DType native;
};

KvFormat format_of(const NamedFormat& f) {
  return parse_kv_format(f.name, f.native, f.scale);
}

void expect_correct(const DecodeCase& c) {
  try {
    const DecodeOutcome outcome = testing::run_decode_case(c);
    const std::string why = testing::judge(outcome);
    EXPECT_TRUE(why.empty()) << why << "\n  " << c.describe() << "\n  " << outcome.plan.describe();
    std::cout << "  l2 " << outcome.rel_l2 << " row " << outcome.worst_row << " lse " << outcome.max_lse_error << "  "
              << outcome.plan.describe() << "\n";
  } catch (const Error& e) {
    FAIL() << e.what() << "\n  " << c.describe();
  }
}

std::vector<NamedFormat> served_formats(DType native) {
  std::vector<NamedFormat> formats = {{"native", ScaleKind::kFixed, native}};
  for (const char* name : {"k16v8", "k8v16", "k8v8", "k8v8-prebias"}) {
    formats.push_back({name, ScaleKind::kFixed, native});
    formats.push_back({name, ScaleKind::kDynamic, native});
  }
  formats.push_back({"ki8v8", ScaleKind::kDynamic, native});
  formats.push_back({"ki8v8-prebias", ScaleKind::kDynamic, native});
  return formats;
}

const std::vector<int32_t> kEdgeLens = {0, 1, 15, 16, 17, 33, 127, 128, 129, 255, 257, 511, 512, 513, 1000};

bool in_build(const DecodeCase& c) {
  const DecodeChoice choice = choose_decode({c.num_kv_heads, c.head_dim, c.head_dim, kPageSize}, c.format, c.group);
  if (!choice.ok) return false;
  for (const DecodeInstance& instance : decode_instance_table())
    if (instance.config == choice.config) return true;
  return false;
}

class EveryFormat : public ::testing::TestWithParam<int> {};

TEST_P(EveryFormat, AtPageAndSplitEdges) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  const int64_t head_dim = GetParam();
  int ran = 0;
  for (const DType native : {DType::kBF16, DType::kF16}) {
    for (const NamedFormat& format : served_formats(native)) {
      for (const int64_t group : {1, 4, 7, 8, 12}) {
        if (native == DType::kF16 && group != 4) continue;
        DecodeCase c{.format = format_of(format), .group = group, .head_dim = head_dim, .seq_lens = kEdgeLens};
        c.q_dtype = native;
        c.bias_magnitude = 150.0;
        if (!in_build(c)) continue;
        expect_correct(c);
        ++ran;
      }
    }
  }
  if (ran == 0) GTEST_SKIP() << "no instance of this head dim in this build";
}
INSTANTIATE_TEST_SUITE_P(HeadDims, EveryFormat, ::testing::Values(64, 128, 256));

TEST(Decode, EveryGroup) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (int64_t group = 1; group <= 16; ++group) {
    expect_correct(
        {.format = format_of({"k16v8", ScaleKind::kFixed, DType::kBF16}), .group = group, .seq_lens = {700, 45}});
  }
}

TEST(Decode, EverySplitRuleAndShape) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"k16v8", "ki8v8-prebias"}) {
    for (const LaunchShape shape : {LaunchShape{8, 4, 1}, LaunchShape{8, 3, 2}, LaunchShape{8, 2, 4},
                                    LaunchShape{8, 2, 8}, LaunchShape{8, 2, 16}, LaunchShape{12, 2, 1}}) {
      DecodeCase c{.format = format_of({name, ScaleKind::kDynamic, DType::kBF16}), .seq_lens = {1333}, .shape = shape};
      c.bias_magnitude = 150.0;
      expect_correct(c);
    }
  }
}

TEST(Decode, ValuesOfVeryDifferentSize) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"native", "k16v8", "k8v8", "ki8v8"}) {
    DecodeCase c{.format = format_of({name, ScaleKind::kDynamic, DType::kBF16}), .seq_lens = {600, 77}};
    c.large_rows = true;
    expect_correct(c);
  }
}

TEST(Decode, ServedGeometriesAt30720Tokens) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const NamedFormat& format :
       {NamedFormat{"native", ScaleKind::kFixed, DType::kBF16}, NamedFormat{"k16v8", ScaleKind::kFixed, DType::kBF16},
        NamedFormat{"k8v8", ScaleKind::kFixed, DType::kBF16},
        NamedFormat{"ki8v8-prebias", ScaleKind::kDynamic, DType::kBF16}}) {
    for (const auto& [kv_heads, group] : {std::pair<int64_t, int64_t>{8, 4}, {4, 7}}) {
      DecodeCase c{.format = format_of(format), .num_kv_heads = kv_heads, .group = group, .seq_lens = {30720}};
      c.bias_magnitude = 150.0;
      if (in_build(c)) expect_correct(c);
    }
  }
}

}  // namespace
}  // namespace asymkv::cuda
