// The bytes of one page for every pair of formats, diffed with tests/golden/kv. After a wanted change of the layout:
//   ASYMKV_REGENERATE_GOLDEN=1 ctest --test-dir build/release -R kv_golden_test
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "asymkv/base/file.h"
#include "asymkv/kv/cache.h"
#include "asymkv/kv/rope.h"

namespace asymkv {
namespace {

constexpr KvGeometry kGeometry{2, 8, 8, 4};
constexpr LayerScales kFixedScales{0.0625F, 0.25F};

std::filesystem::path golden_folder() {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  return std::filesystem::path(source == nullptr ? "." : source) / "tests" / "golden" / "kv";
}

// The constant vector inside the keys: large on the slowest pair, as a Qwen2 key bias is.
float bias(int64_t head, int64_t channel) {
  return channel % 4 == 3 ? (head == 0 ? 40.0F : -30.0F) : 0.5F;
}

KeyTransform transform() {
  std::vector<float> vector;
  for (int64_t head = 0; head < kGeometry.num_kv_heads; ++head) {
    for (int64_t channel = 0; channel < kGeometry.k_head_dim; ++channel) vector.push_back(bias(head, channel));
  }
  return split_key_vector(vector, rope_frequencies(1e6, kGeometry.k_head_dim), kGeometry.num_kv_heads);
}

// Key before RoPE of a token: its content plus the bias.
float key_before_rope(int64_t head, int64_t slot, int64_t channel) {
  return 0.25F * static_cast<float>((5 * slot + 3 * channel + 2 * head) % 11 - 5) + bias(head, channel);
}

// What a writer stores: the key without the removed vector, turned to its position (here the slot) in double.
std::vector<float> stored_key(int64_t head, int64_t slot, const KeyTransform* removed) {
  const auto half = static_cast<size_t>(kGeometry.k_head_dim / 2);
  std::vector<double> x;
  for (int64_t channel = 0; channel < kGeometry.k_head_dim; ++channel) {
    const float taken = removed == nullptr ? 0.0F : removed->removed_of(head)[channel];
    x.push_back(static_cast<double>(key_before_rope(head, slot, channel) - taken));
  }
  const std::vector<double> frequencies = rope_frequencies(1e6, kGeometry.k_head_dim);
  std::vector<float> turned(x.size());
  for (size_t pair = 0; pair < half; ++pair) {
    const double angle = static_cast<double>(slot) * frequencies[pair];
    turned[pair] = static_cast<float>(x[pair] * std::cos(angle) - x[pair + half] * std::sin(angle));
    turned[pair + half] = static_cast<float>(x[pair + half] * std::cos(angle) + x[pair] * std::sin(angle));
  }
  return turned;
}

// Ordinary rows, and in the last slot what a codec can get wrong: zeros of both signs, subnormals, a tie, the largest
// value, one past it, infinity and NaN.
std::vector<float> stored_value(int64_t head, int64_t slot) {
  if (slot == kGeometry.page_size - 1) {
    return head == 0 ? std::vector<float>{0.0F, -0.0F, 0x1p-12F, -0x1p-11F, 0.53125F, 112.0F, 113.0F, -4000.0F}
                     : std::vector<float>{1.0F,
                                          std::numeric_limits<float>::infinity(),
                                          -std::numeric_limits<float>::infinity(),
                                          std::numeric_limits<float>::quiet_NaN(),
                                          2.0F,
                                          -3.0F,
                                          448.0F,
                                          1e-30F};
  }
  std::vector<float> row;
  for (int64_t channel = 0; channel < kGeometry.v_head_dim; ++channel) {
    row.push_back(0.375F * static_cast<float>((7 * slot + 5 * channel + 3 * head) % 13 - 6));
  }
  return row;
}

struct SideRow {
  DType dtype;
  ScaleKind kind;
  float fixed_scale;
  std::byte* out;
  float* dynamic_scale_out;
};

void write_side(const SideRow& side, const std::vector<float>& row) {
  SideCounters counters;
  float scale = side.fixed_scale;
  if (side.kind == ScaleKind::kDynamic) *side.dynamic_scale_out = scale = dynamic_scale(side.dtype, row);
  encode_row(side.dtype, scale, row, side.out, counters);
}

void write_page(KvCache& cache, const KeyTransform& removed) {
  const KvLayout& layout = cache.layout();
  const KvFormat& format = layout.format();
  const KvLayerView view = cache.layer(0);
  for (int64_t head = 0; head < kGeometry.num_kv_heads; ++head) {
    for (int64_t slot = 0; slot < kGeometry.page_size; ++slot) {
      const auto at = [&](float* scales) {
        return scales == nullptr ? nullptr : scales + layout.scale_index(0, head, slot);
      };
      write_side({format.key.dtype, format.key.scale, kFixedScales.key,
                  view.k_plane + layout.k_row_offset_bytes(0, head, slot), at(view.k_scales)},
                 stored_key(head, slot, format.key.prebias ? &removed : nullptr));
      write_side({format.value.dtype, format.value.scale, kFixedScales.value,
                  view.v_plane + layout.v_row_offset_bytes(0, head, slot), at(view.v_scales)},
                 stored_value(head, slot));
    }
  }
}

std::string plane_text(std::string_view name, const std::byte* plane, int64_t num_bytes, int64_t row_bytes) {
  std::string text = fmt::format("{} {} bytes\n", name, num_bytes);
  for (int64_t i = 0; i < num_bytes; ++i) {
    text += fmt::format("{}{:02x}", i % row_bytes == 0 ? "" : " ", std::to_integer<unsigned>(plane[i]));
    if ((i + 1) % row_bytes == 0) text += '\n';
  }
  return text;
}

std::string page_text(const KvFormat& format) {
  const KvLayout layout(kGeometry, format);
  KvCacheConfig config;
  config.num_layers = 1;
  config.num_pages = 1;
  if (format.scale() == ScaleKind::kFixed) config.fixed_scales = {kFixedScales};
  if (format.key.prebias) config.transforms = {transform()};
  KvCache cache(layout, config);
  write_page(cache, transform());
  const KvLayerView view = cache.layer(0);
  std::string text = fmt::format(
      "# One page of a cache, written by src/asymkv/kv/golden_test.cc, which also says how to write it again.\n"
      "layout {} version 1\nkv {} scale {}\nkv_heads {} k_head_dim {} v_head_dim {} page_size {}\n",
      layout.id(), format.id(), scale_kind_name(format.scale()), kGeometry.num_kv_heads, kGeometry.k_head_dim,
      kGeometry.v_head_dim, kGeometry.page_size);
  if (format.key.scale == ScaleKind::kFixed) text += fmt::format("k_fixed_scale {}\n", kFixedScales.key);
  if (format.value.scale == ScaleKind::kFixed) text += fmt::format("v_fixed_scale {}\n", kFixedScales.value);
  text += plane_text("k", view.k_plane, layout.k_plane_bytes(1), layout.k_row_stride_bytes());
  text += plane_text("v", view.v_plane, layout.v_plane_bytes(1), layout.v_row_stride_bytes());
  const auto scale_text = [&](std::string_view name, const float* scales, int64_t num_bytes) {
    return num_bytes == 0 ? std::string()
                          : plane_text(name, reinterpret_cast<const std::byte*>(scales), num_bytes, sizeof(float));
  };
  text += scale_text("k_scale", view.k_scales, layout.k_scale_plane_bytes(1));
  text += scale_text("v_scale", view.v_scales, layout.v_scale_plane_bytes(1));
  return text;
}

// Every pair of stored formats with every scale policy that it has.
std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const std::string_view key : {"bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias"}) {
    for (const std::string_view value : {"bf16", "f16", "f32", "e4m3"}) {
      for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
        if (key.starts_with("i8") && scale == ScaleKind::kFixed) continue;
        const KvFormat format = parse_kv_format(fmt::format("{}/{}", key, value), DType::kBF16, scale);
        if (formats.empty() || !(formats.back() == format)) formats.push_back(format);
      }
    }
  }
  return formats;
}

std::string file_name(const KvFormat& format) {
  return fmt::format("{}_{}_{}.txt", format.key.id(), format.value.id(), scale_kind_name(format.scale()));
}

TEST(GoldenPages, EveryFormatHasItsBytes) {
  const bool regenerate = std::getenv("ASYMKV_REGENERATE_GOLDEN") != nullptr;
  std::set<std::string> expected_files;
  for (const KvFormat& format : all_formats()) {
    const std::filesystem::path path = golden_folder() / file_name(format);
    expected_files.insert(path.filename().string());
    const std::string text = page_text(format);
    if (regenerate) write_file_atomic(path, text);
    EXPECT_EQ(read_text_file(path), text) << path;
  }
  EXPECT_EQ(expected_files.size(), 39U);
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    EXPECT_TRUE(expected_files.contains(entry.path().filename().string())) << entry.path() << " is of no format";
  }
}

// The golden bytes say what their format says: decoded, they are the rows that were stored, within the format's step.
TEST(GoldenPages, DecodeToTheStoredRows) {
  const KvFormat format = parse_kv_format("ki8v8-prebias", DType::kBF16, ScaleKind::kDynamic);
  KvCacheConfig config;
  config.num_layers = 1;
  config.num_pages = 1;
  config.transforms = {transform()};
  KvCache cache(KvLayout(kGeometry, format), config);
  write_page(cache, transform());
  const KvLayerView view = cache.layer(0);
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t slot = 0; slot < 4; ++slot) {
      std::vector<float> row(8);
      const float scale = view.k_scale(0, head, slot);
      decode_row(DType::kI8, scale, view.k_plane + cache.layout().k_row_offset_bytes(0, head, slot), row);
      const std::vector<float> wanted = stored_key(head, slot, &config.transforms[0]);
      for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(row[i], wanted[i], scale * 0.5001F);
    }
  }
}

TEST(GoldenPages, BiasRemovalTakesTheLargeChannelOut) {
  const KeyTransform removed = transform();
  EXPECT_EQ(removed.removed_of(0)[3], 40.0F);
  EXPECT_EQ(removed.removed_of(1)[7], -30.0F);
  EXPECT_LT(std::fabs(stored_key(0, 2, &removed)[3]), 3.0F);
  EXPECT_GT(std::fabs(stored_key(0, 2, nullptr)[3]), 30.0F);
}

}  // namespace
}  // namespace asymkv
