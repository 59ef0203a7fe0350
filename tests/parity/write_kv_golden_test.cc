// What every kernel family stores for one write, byte for byte against a quantiser written in torch
// (tests/golden/parity/write-kv-*.json, made by make_write_kv_golden.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kv/cache.h"

namespace asymkv {
namespace {

constexpr int64_t kPageSize = 4;

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::vector<float> floats_of_hex(const std::string& hex) {
  const std::vector<std::byte> bytes = bytes_of_hex(hex);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

template <typename T>
std::string hex_of(const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  std::string hex;
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

// One golden file.
struct Golden {
  explicit Golden(const std::string& native)
      : json(read_json_file(std::filesystem::path(std::getenv("ASYMKV_SOURCE_DIR")) / "tests/golden/parity" /
                            ("write-kv-" + native + ".json"))),
        native_dtype(parse_dtype(native)),
        geometry{json["heads"], json["dim"], json["dim"], kPageSize},
        positions(json["positions"].get<std::vector<int32_t>>()),
        k(floats("k")),
        v(floats("v")),
        k_bias(floats("k_bias")),
        frequencies(rope_frequencies(json["theta"], geometry.k_head_dim)),
        rope(frequencies, *std::ranges::max_element(positions) + 1) {}
  std::vector<float> floats(const std::string& field) const { return floats_of_hex(json[field]); }
  int64_t num_tokens() const { return static_cast<int64_t>(positions.size()); }

  Json json;
  DType native_dtype;
  KvGeometry geometry;
  std::vector<int32_t> positions;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> k_bias;
  std::vector<double> frequencies;
  RopeTable rope;
};

KvFormat format_of(const Golden& golden, const Json& arm) {
  const std::string key = arm["key"]["dtype"].get<std::string>() + (arm["prebias"] ? "-prebias" : "");
  const ScaleKind scale = arm["scale"] == "fixed" ? ScaleKind::kFixed : ScaleKind::kDynamic;
  return parse_kv_format(key + "/" + arm["value"]["dtype"].get<std::string>(), golden.native_dtype, scale);
}

std::unique_ptr<KvCache> make_cache(const Golden& golden, const KvFormat& format) {
  KvCacheConfig config;
  config.num_layers = 1;
  config.num_pages = golden.num_tokens() / kPageSize + 1;
  if (format.scale() == ScaleKind::kFixed) {
    config.fixed_scales = {{golden.json["fixed_key_scale"], golden.json["fixed_value_scale"]}};
    config.scale_source = "calibrated:test";
  } else if (format.scale() == ScaleKind::kDynamic) {
    config.scale_source = "dynamic";
  }
  if (format.key.prebias) {
    config.transforms = {split_key_vector(golden.k_bias, golden.frequencies, golden.geometry.num_kv_heads)};
  }
  return std::make_unique<KvCache>(KvLayout(golden.geometry, format), config);
}

// Slots of the tokens: pages and places in an order of no meaning.
std::vector<int64_t> scattered_slots(int64_t num_tokens, int64_t num_pages) {
  std::vector<int64_t> slots(static_cast<size_t>(num_tokens));
  for (int64_t i = 0; i < num_tokens; ++i) slots[static_cast<size_t>(i)] = (7 * i + 5) % (num_pages * kPageSize);
  return slots;
}

// What one side holds, in token order.
struct Stored {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
};

Stored gather(const KvLayerView& view, const std::vector<int64_t>& slots, bool keys) {
  const KvLayout& layout = *view.layout;
  const int64_t row_bytes = keys ? layout.k_row_payload_bytes() : layout.v_row_payload_bytes();
  const float* scales = keys ? view.k_scales : view.v_scales;
  Stored stored;
  for (const int64_t slot : slots) {
    for (int64_t head = 0; head < layout.geometry().num_kv_heads; ++head) {
      const int64_t page = slot / kPageSize;
      const int64_t place = slot % kPageSize;
      const std::byte* row = keys ? view.k_plane + layout.k_row_offset_bytes(page, head, place)
                                  : view.v_plane + layout.v_row_offset_bytes(page, head, place);
      stored.bytes.insert(stored.bytes.end(), row, row + row_bytes);
      if (scales != nullptr) stored.scales.push_back(scales[layout.scale_index(page, head, place)]);
    }
  }
  return stored;
}

void expect_side(const Stored& stored, const Json& expected) {
  EXPECT_EQ(hex_of(stored.bytes), expected["stored"].get<std::string>());
  EXPECT_EQ(hex_of(stored.scales), expected.value("scales", ""));
}

// A cache, the slots of the tokens in it, and what the writer returned.
struct Written {
  std::unique_ptr<KvCache> cache;
  std::vector<int64_t> slots;
  std::vector<float> fresh_k;
  std::vector<float> fresh_v;
};

Written write(const AttentionBackend& backend, const Golden& golden, const KvFormat& format,
              const std::vector<float>& v) {
  Written written;
  written.cache = make_cache(golden, format);
  written.slots = scattered_slots(golden.num_tokens(), written.cache->pool().num_pages());
  written.fresh_k.resize(golden.k.size());
  written.fresh_v.resize(v.size());
  const std::array targets = {WriteTarget{written.cache->layer(0), written.slots, &written.cache->k_counters(0),
                                          &written.cache->v_counters(0)}};
  WriteKvParams params;
  params.num_tokens = golden.num_tokens();
  params.k = golden.k.data();
  params.v = v.data();
  params.k_bias = golden.k_bias.data();
  params.positions = golden.positions;
  params.rope = &golden.rope;
  params.geometry = golden.geometry;
  params.native_dtype = golden.native_dtype;
  params.targets = targets;
  params.fresh_k = written.fresh_k.data();
  params.fresh_v = written.fresh_v.data();
  backend.write_kv(params);
  return written;
}

// Every family that this machine can run.
std::vector<std::unique_ptr<AttentionBackend>> all_backends() {
  std::vector<std::unique_ptr<AttentionBackend>> backends;
  backends.push_back(make_ref_attention());
  backends.push_back(make_cpu_attention());
  for (const char* name : {"cpu-avx512", "cpu-avx2", "cpu-sse4", "cpu-sse2", "cpu-neon", "cpu-scalar"}) {
    try {
      backends.push_back(make_cpu_attention(name));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
  }
  return backends;
}

class WriteKvGolden : public testing::TestWithParam<std::string> {
 protected:
  Golden golden_{GetParam()};
};

TEST_P(WriteKvGolden, StoredBytesAndScalesEqualTorch) {
  for (const auto& backend : all_backends()) {
    for (const auto& [name, arm] : golden_.json["arms"].items()) {
      SCOPED_TRACE(fmt::format("{} {}", backend->name(), name));
      const Written written = write(*backend, golden_, format_of(golden_, arm), golden_.v);
      expect_side(gather(written.cache->layer(0), written.slots, true), arm["key"]);
      expect_side(gather(written.cache->layer(0), written.slots, false), arm["value"]);
    }
  }
}

TEST_P(WriteKvGolden, FreshKeysAndValuesEqualTorch) {
  const KvFormat native = parse_kv_format("native", golden_.native_dtype, ScaleKind::kDynamic);
  for (const auto& backend : all_backends()) {
    SCOPED_TRACE(backend->name());
    const Written written = write(*backend, golden_, native, golden_.v);
    EXPECT_EQ(hex_of(written.fresh_k), golden_.json["fresh_k"].get<std::string>());
    EXPECT_EQ(hex_of(written.fresh_v), golden_.json["fresh_v"].get<std::string>());
  }
}

TEST_P(WriteKvGolden, NonFiniteValuesAreStoredAsFiniteCodesAndCounted) {
  const std::vector<float> hostile = golden_.floats("v_hostile");
  const auto is_finite = [](float x) { return std::isfinite(x); };
  const auto num_non_finite = std::ranges::ssize(hostile) - std::ranges::count_if(hostile, is_finite);
  ASSERT_GT(num_non_finite, 0);
  for (const auto& backend : all_backends()) {
    for (const auto& [name, arm] : golden_.json["arms"].items()) {
      if (!arm.contains("value_hostile")) continue;
      SCOPED_TRACE(fmt::format("{} {}", backend->name(), name));
      const Written written = write(*backend, golden_, format_of(golden_, arm), hostile);
      expect_side(gather(written.cache->layer(0), written.slots, false), arm["value_hostile"]);
      EXPECT_EQ(written.cache->v_counters(0).non_finite, num_non_finite);
    }
  }
}

TEST_P(WriteKvGolden, RemovedVectorEqualsTorch) {
  const KeyTransform transform = split_key_vector(golden_.k_bias, golden_.frequencies, golden_.geometry.num_kv_heads);
  EXPECT_EQ(hex_of(transform.removed), golden_.json["k_removed"].get<std::string>());
  std::vector<int> classes;
  for (const PairClass pair_class : transform.pair_class) classes.push_back(static_cast<int>(pair_class));
  std::vector<int> expected;
  for (const Json& head : golden_.json["pair_class"]) {
    for (const Json& pair_class : head) expected.push_back(pair_class);
  }
  EXPECT_EQ(classes, expected);
  EXPECT_THAT(classes, testing::IsSupersetOf({0, 1, 2})) << "the input must exercise every class";
}

// The test above can fail: one wrong bit in the input changes stored bytes of every arm.
TEST_P(WriteKvGolden, OneChangedInputIsNoticed) {
  golden_.v[70] += 0.5F;
  golden_.k[70] += 2.0F;
  const auto backend = make_cpu_attention();
  for (const auto& [name, arm] : golden_.json["arms"].items()) {
    const Written written = write(*backend, golden_, format_of(golden_, arm), golden_.v);
    EXPECT_NE(hex_of(gather(written.cache->layer(0), written.slots, true).bytes), arm["key"]["stored"]) << name;
    EXPECT_NE(hex_of(gather(written.cache->layer(0), written.slots, false).bytes), arm["value"]["stored"]) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Native, WriteKvGolden, testing::Values("bf16", "f16"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace asymkv
