#include "asymkv/kv/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

KvFormat parse(std::string_view text, ScaleKind scale = ScaleKind::kDynamic, DType native = DType::kBF16) {
  return parse_kv_format(text, native, scale);
}

// A cache of num_layers equal layers, as a whole number of pages of a byte budget.
struct ModelCase {
  int64_t num_layers;
  KvGeometry geometry;

  int64_t page_bytes(const KvFormat& format) const {
    return KvLayout(geometry, format).page_bytes().scaled(num_layers).total();
  }
  int64_t pages(int64_t budget_bytes, const KvFormat& format) const { return budget_bytes / page_bytes(format); }
  int64_t token_bytes(const KvFormat& format) const { return page_bytes(format) / geometry.page_size; }
};

constexpr ModelCase kQwen3_8B{36, {8, 128, 128, 16}};
constexpr ModelCase kPhi4{40, {10, 128, 128, 16}};

TEST(KvLayout, SizesOfUnequalSidesAndPaddingByHand) {
  const KvGeometry geometry{3, 5, 7, 2};
  const KvPadding padding{1, 2, 11, 13};
  const KvLayout layout(geometry, parse("f32/e4m3"), padding);
  EXPECT_EQ(layout.k_row_payload_bytes(), 20);
  EXPECT_EQ(layout.v_row_payload_bytes(), 7);
  EXPECT_EQ(layout.k_row_stride_bytes(), 21);
  EXPECT_EQ(layout.v_row_stride_bytes(), 9);
  EXPECT_EQ(layout.k_head_stride_bytes(), 42);
  EXPECT_EQ(layout.v_head_stride_bytes(), 18);
  EXPECT_EQ(layout.k_page_stride_bytes(), 137);
  EXPECT_EQ(layout.v_page_stride_bytes(), 67);
  EXPECT_FALSE(layout.has_k_scales());
  EXPECT_TRUE(layout.has_v_scales());
  EXPECT_EQ(layout.page_scale_elems(), 6);
  EXPECT_EQ(layout.k_row_offset_bytes(1, 2, 1), 137 + 84 + 21);
  EXPECT_EQ(layout.v_row_offset_bytes(1, 2, 1), 67 + 36 + 9);
  EXPECT_EQ(layout.scale_index(1, 2, 1), 6 + 4 + 1);
  EXPECT_EQ(layout.k_plane_bytes(3), 411);
  EXPECT_EQ(layout.v_plane_bytes(3), 201);
  EXPECT_EQ(layout.k_scale_plane_bytes(3), 0);
  EXPECT_EQ(layout.v_scale_plane_bytes(3), 72);
  EXPECT_EQ(layout.page_bytes(), (PageBytes{120, 42, 0, 24, 42}));
  EXPECT_EQ(layout.page_bytes().total(), 137 + 67 + 24);
  EXPECT_EQ(layout.page_bytes().scaled(5).total(), 1140);
  EXPECT_EQ(layout.id(), "plain-1");
}

TEST(KvLayout, PagesForTokensRoundsUp) {
  const KvLayout layout({1, 8, 8, 16}, parse("native"));
  EXPECT_EQ(layout.pages_for(0), 0);
  EXPECT_EQ(layout.pages_for(1), 1);
  EXPECT_EQ(layout.pages_for(16), 1);
  EXPECT_EQ(layout.pages_for(17), 2);
}

struct RandomLayout {
  explicit RandomLayout(uint64_t seed) : random(seed) {}
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); }
  KvLayout draw() {
    static constexpr std::array<std::string_view, 7> kKeys{"bf16",         "f16", "f32",       "e4m3",
                                                           "e4m3-prebias", "i8",  "i8-prebias"};
    static constexpr std::array<std::string_view, 4> kValues{"bf16", "f16", "f32", "e4m3"};
    const std::string_view key = kKeys[static_cast<size_t>(between(0, 6))];
    const std::string text = std::string(key) + "/" + std::string(kValues[static_cast<size_t>(between(0, 3))]);
    const bool fixed = !key.starts_with("i8") && between(0, 1) == 1;
    const KvGeometry geometry{between(1, 5), 2 * between(1, 9), between(1, 17), between(1, 7)};
    const bool padded = between(0, 3) != 0;
    const KvPadding padding =
        padded ? KvPadding{between(0, 5), between(0, 5), between(0, 40), between(0, 40)} : KvPadding{};
    return {geometry, parse(text, fixed ? ScaleKind::kFixed : ScaleKind::kDynamic), padding};
  }
  std::mt19937_64 random;
};

// Marks the bytes [offset, offset + bytes) of a plane as taken, once.
void take(std::vector<char>& plane, int64_t offset, int64_t bytes) {
  ASSERT_GE(offset, 0);
  ASSERT_LE(offset + bytes, static_cast<int64_t>(plane.size()));
  for (int64_t i = offset; i < offset + bytes; ++i) {
    ASSERT_EQ(plane[static_cast<size_t>(i)], 0) << "byte " << i << " belongs to two rows";
    plane[static_cast<size_t>(i)] = 1;
  }
}

TEST(KvLayout, RowsAndScalesAreDisjointAndInBounds) {
  RandomLayout source(4);
  constexpr int64_t kPages = 3;
  for (int i = 0; i < 400; ++i) {
    const KvLayout layout = source.draw();
    std::vector<char> keys(static_cast<size_t>(layout.k_plane_bytes(kPages)));
    std::vector<char> values(static_cast<size_t>(layout.v_plane_bytes(kPages)));
    std::vector<char> scales(static_cast<size_t>(kPages * layout.page_scale_elems()));
    for (int64_t page = 0; page < kPages; ++page) {
      for (int64_t head = 0; head < layout.geometry().num_kv_heads; ++head) {
        for (int64_t slot = 0; slot < layout.geometry().page_size; ++slot) {
          take(keys, layout.k_row_offset_bytes(page, head, slot), layout.k_row_payload_bytes());
          take(values, layout.v_row_offset_bytes(page, head, slot), layout.v_row_payload_bytes());
          take(scales, layout.scale_index(page, head, slot), 1);
        }
      }
    }
    ASSERT_FALSE(HasFatalFailure()) << layout.format().id();
    const PageBytes page = layout.page_bytes();
    EXPECT_EQ(std::count(keys.begin(), keys.end(), 1), kPages * page.k_payload);
    EXPECT_EQ(std::count(values.begin(), values.end(), 1), kPages * page.v_payload);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), 0) + std::count(values.begin(), values.end(), 0),
              kPages * page.padding);
    EXPECT_EQ(std::count(scales.begin(), scales.end(), 0), 0);
    EXPECT_EQ(layout.k_plane_bytes(kPages) + layout.v_plane_bytes(kPages) + layout.k_scale_plane_bytes(kPages) +
                  layout.v_scale_plane_bytes(kPages),
              page.scaled(kPages).total());
  }
}

TEST(KvLayout, KeysAndValuesDoNotMoveEachOther) {
  const KvLayout base({4, 64, 64, 16}, parse("bf16/bf16"));
  const KvLayout narrow_values({4, 64, 32, 16}, parse("bf16/e4m3"), {0, 3, 0, 5});
  EXPECT_EQ(base.k_row_offset_bytes(7, 3, 9), narrow_values.k_row_offset_bytes(7, 3, 9));
  EXPECT_EQ(base.k_plane_bytes(8), narrow_values.k_plane_bytes(8));
  const KvLayout narrow_keys({4, 32, 64, 16}, parse("i8/bf16"), {3, 0, 5, 0});
  EXPECT_EQ(base.v_row_offset_bytes(7, 3, 9), narrow_keys.v_row_offset_bytes(7, 3, 9));
  EXPECT_EQ(base.v_plane_bytes(8), narrow_keys.v_plane_bytes(8));
}

// K16/V8 (A) and K8/V16 (R) are compared by the gate at equal bytes.
TEST(KvLayout, AAndRHaveEqualPageBytes) {
  for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
    for (const int64_t page_size : {1, 16, 64}) {
      for (const int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
        const KvGeometry geometry{2, head_dim, head_dim, page_size};
        const PageBytes a = KvLayout(geometry, parse("k16v8", scale)).page_bytes();
        const PageBytes r = KvLayout(geometry, parse("k8v16", scale)).page_bytes();
        EXPECT_EQ(a.total(), r.total());
        EXPECT_EQ(a.k_payload, r.v_payload);
        EXPECT_EQ(a.v_scales, r.k_scales);
      }
    }
  }
}

TEST(KvLayout, BiasRemovalCostsNoBytes) {
  const KvGeometry geometry{2, 64, 64, 16};
  EXPECT_EQ(KvLayout(geometry, parse("k8v8")).page_bytes(), KvLayout(geometry, parse("k8v8-prebias")).page_bytes());
  EXPECT_EQ(KvLayout(geometry, parse("ki8v8")).page_bytes(), KvLayout(geometry, parse("ki8v8-prebias")).page_bytes());
}

TEST(Capacity, PagesOfQwen3_8B) {
  const int64_t budget = 40 * kGiB;
  EXPECT_EQ(kQwen3_8B.pages(budget, parse("native")), 18'204);
  EXPECT_EQ(kQwen3_8B.pages(budget, parse("k16v8", ScaleKind::kFixed)), 24'272);
  const int64_t left = budget - 36 * kMiB;
  EXPECT_EQ(kQwen3_8B.pages(left, parse("native")), 18'188);
  EXPECT_EQ(kQwen3_8B.pages(left, parse("k16v8", ScaleKind::kFixed)), 24'251);
  EXPECT_EQ(kQwen3_8B.pages(left, parse("k8v8")), 35'274);
  EXPECT_EQ(kQwen3_8B.pages(left, parse("k8v8")) * 16, 564'384);
}

TEST(Capacity, EqualSlotsOfQwen3_8B) {
  const auto gib = [](const KvFormat& format) {
    return static_cast<double>(272'000 / 16 * kQwen3_8B.page_bytes(format)) / static_cast<double>(kGiB);
  };
  EXPECT_NEAR(gib(parse("native")), 37.3535, 5e-5);
  EXPECT_NEAR(gib(parse("k16v8", ScaleKind::kFixed)), 28.0151, 5e-5);
  EXPECT_NEAR(gib(parse("k8v8")), 19.2604, 5e-5);
}

TEST(Capacity, SlotsOfPhi4) {
  EXPECT_EQ(kPhi4.pages(32 * kGiB, parse("native")) * 16, 167'760);
  EXPECT_EQ(kPhi4.pages(32 * kGiB, parse("k16v8", ScaleKind::kFixed)) * 16, 223'696);
}

TEST(Capacity, DynamicScalesAddFourBytesPerTokenHeadAndSide) {
  const ModelCase one_head{1, {1, 128, 128, 16}};
  EXPECT_EQ(one_head.token_bytes(parse("native")), 512);
  EXPECT_EQ(one_head.token_bytes(parse("k8v8")), 264);
  EXPECT_EQ(one_head.token_bytes(parse("ki8v8")), 264);
  EXPECT_EQ(one_head.token_bytes(parse("k8v8", ScaleKind::kFixed)), 256);
  EXPECT_EQ(one_head.token_bytes(parse("k16v8")), 388);
  EXPECT_DOUBLE_EQ(100.0 * (512 - 264) / 512, 48.4375);
  EXPECT_NEAR(512.0 / 264.0, 1.939, 5e-4);
}

TEST(Capacity, SavingOfAHybridWithAFixedState) {
  const ModelCase full_layers{16, {4, 256, 256, 16}};
  const auto bytes = [&](std::string_view text) {
    return 8'320 / 16 * full_layers.page_bytes(parse(text)) + 79'429'632;
  };
  const auto saved_pct = [&](std::string_view text) {
    return 100.0 * static_cast<double>(bytes("native") - bytes(text)) / static_cast<double>(bytes("native"));
  };
  EXPECT_EQ(bytes("native"), 624'689'152);
  EXPECT_NEAR(saved_pct("k16v8"), 21.48, 5e-3);
  EXPECT_NEAR(saved_pct("k8v8"), 42.96, 5e-3);
}

TEST(Capacity, BytesPerTokenOfPublishedGeometries) {
  struct Row {
    int64_t num_layers, num_kv_heads, head_dim, bytes_per_token;
  };
  for (const Row& row :
       {Row{24, 2, 64, 12'288}, Row{28, 2, 128, 28'672}, Row{28, 4, 128, 57'344}, Row{28, 8, 128, 114'688},
        Row{36, 8, 128, 147'456}, Row{64, 8, 128, 262'144}, Row{48, 4, 128, 98'304}, Row{32, 8, 128, 131'072},
        Row{80, 8, 128, 327'680}, Row{40, 10, 128, 204'800}, Row{34, 8, 128, 139'264}, Row{8, 4, 256, 32'768}}) {
    const ModelCase model{row.num_layers, {row.num_kv_heads, row.head_dim, row.head_dim, 16}};
    EXPECT_EQ(model.token_bytes(parse("native")), row.bytes_per_token);
    EXPECT_EQ(model.token_bytes(parse("native", ScaleKind::kDynamic, DType::kF16)), row.bytes_per_token);
    EXPECT_EQ(4 * model.token_bytes(parse("k16v8", ScaleKind::kFixed)), 3 * row.bytes_per_token);
  }
}

void expect_unsupported(const KvGeometry& geometry, const KvFormat& format, const KvPadding& padding,
                        const std::string& part) {
  try {
    const KvLayout layout(geometry, format, padding);
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(KvLayout, RefusesShapesThatCannotBeServed) {
  const KvFormat native = parse("native");
  expect_unsupported({0, 8, 8, 16}, native, {}, "0 KV heads");
  expect_unsupported({1, -1, 8, 16}, native, {}, "key dim -1");
  expect_unsupported({1, 8, 0, 16}, native, {}, "value dim 0");
  expect_unsupported({1, 8, 8, 0}, native, {}, "page size 0");
  expect_unsupported({1, 7, 8, 16}, parse("k8v8-prebias"), {}, "even key head dim");
  expect_unsupported({1, 8, 8, 16}, native, {-1, 0, 0, 0}, "padding");
  expect_unsupported({1, 8, 8, 16}, native, {0, 0, 0, -4}, "padding");
}

TEST(KvLayout, RefusesSizesThatOverflow) {
  const int64_t big = int64_t{1} << 40;
  expect_unsupported({big, big, 8, 16}, parse("native"), {}, "too large");
  expect_unsupported({1, 8, 8, big}, parse("native"), {big, 0, 0, 0}, "too large");
}

TEST(KvLayout, RefusesFormatsWhoseSidesAndScalesDoNotFit) {
  const KvGeometry geometry{1, 8, 8, 16};
  KvFormat format = parse("k8v8");
  format.key.scale = ScaleKind::kNone;
  expect_unsupported(geometry, format, {}, "keys stored as e4m3");
  format = parse("native");
  format.value.scale = ScaleKind::kFixed;
  expect_unsupported(geometry, format, {}, "values stored as bf16");
  format = parse("ki8v8");
  format.key.scale = ScaleKind::kFixed;
  expect_unsupported(geometry, format, {}, "INT8 keys");
  format = parse("k8v8");
  format.value.dtype = DType::kI8;
  expect_unsupported(geometry, format, {}, "values stored as i8");
  format = parse("native");
  format.key.prebias = true;
  expect_unsupported(geometry, format, {}, "bias removal");
}

}  // namespace
}  // namespace asymkv
