#include "asymkv/kv/tiled_layout.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr KvFormat kDynamic8{{DType::kI8, false, ScaleKind::kDynamic}, {DType::kE4M3, ScaleKind::kDynamic}};
constexpr KvFormat kFixedValue{{DType::kBF16, false, ScaleKind::kNone}, {DType::kE4M3, ScaleKind::kFixed}};
constexpr KvFormat kFixedKey{{DType::kE4M3, false, ScaleKind::kFixed}, {DType::kF16, ScaleKind::kNone}};
constexpr KvFormat kNative{{DType::kBF16, false, ScaleKind::kNone}, {DType::kBF16, ScaleKind::kNone}};

void expect_bijective(int64_t (*offset)(int64_t, int64_t), int64_t elem_bytes, int64_t head_dim) {
  std::set<int64_t> seen;
  for (int64_t slot = 0; slot < kTiledPageSize; ++slot) {
    for (int64_t c = 0; c < head_dim; ++c) {
      const int64_t at = offset(slot, c);
      EXPECT_EQ(at % elem_bytes, 0);
      EXPECT_GE(at, 0);
      EXPECT_LT(at, kTiledPageSize * head_dim * elem_bytes);
      EXPECT_TRUE(seen.insert(at).second) << "slot " << slot << " channel " << c << " shares byte " << at;
    }
  }
}

TEST(TiledLayout, EveryElementHasItsOwnPlaceInTheBlock) {
  for (const int64_t head_dim : {32, 64, 96, 128, 192, 256}) {
    expect_bijective(tiled_k16_offset, 2, head_dim);
    expect_bijective(tiled_v16_offset, 2, head_dim);
    expect_bijective(tiled_k8_offset, 1, head_dim);
    expect_bijective(tiled_v8_offset, 1, head_dim);
  }
}

// The fragment tables of the PTX ISA for A of mma.m16n8k16: register i of lane (g, t) holds
// row g + 8 * (i / 2 % 2), columns 2t + (i % 2) + 8 * (i / 4).
TEST(TiledLayout, SixteenBitOrderIsTheFragmentTable) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t i = 0; i < 8; ++i) {
      const int64_t row = lane / 4 + 8 * (i / 2 % 2);
      const int64_t column = lane % 4 * 2 + i % 2 + 8 * (i / 4);
      EXPECT_EQ(tiled_k16_offset(row, column), lane * 16 + i * 2);
      EXPECT_EQ(tiled_v16_offset(column, row), lane * 16 + i * 2);
    }
  }
}

// 8-bit values widen to the same fragments: word w of a lane gives registers of tile w / 2, channel half w % 2.
TEST(TiledLayout, EightBitValuesWidenToTheFragmentTable) {
  for (int64_t lane = 0; lane < 32; ++lane) {
    for (int64_t byte = 0; byte < 16; ++byte) {
      const int64_t word = byte / 4;
      const int64_t channel = 16 * (word / 2) + 8 * (word % 2) + lane / 4;
      const int64_t slot = lane % 4 * 2 + byte % 2 + 8 * (byte % 4 / 2);
      EXPECT_EQ(tiled_v8_offset(slot, channel), lane * 16 + byte);
    }
  }
}

TEST(TiledLayout, BytesOfPagesAndScales) {
  const KvGeometry geometry{.num_kv_heads = 8, .k_head_dim = 128, .v_head_dim = 64, .page_size = 16};
  const TiledLayout layout(geometry, kDynamic8);
  EXPECT_EQ(layout.id(), "tiled-1");
  EXPECT_EQ(layout.k_block_bytes(), 2048);
  EXPECT_EQ(layout.v_block_bytes(), 1024);
  EXPECT_EQ(layout.scale_block_bytes(), 128);
  EXPECT_EQ(layout.page_stride_bytes(), 8 * 3072);
  const KvLayout plain(geometry, kDynamic8);
  EXPECT_EQ(layout.plane_bytes(5) + layout.scale_plane_bytes(5), plain.page_bytes().scaled(5).total());
  EXPECT_EQ(TiledLayout(geometry, kNative).scale_block_bytes(), 0);
}

TEST(TiledLayout, ConversionRoundTripsEveryByte) {
  for (const KvFormat& format : {kNative, kFixedValue, kFixedKey, kDynamic8}) {
    const KvGeometry geometry{.num_kv_heads = 3, .k_head_dim = 64, .v_head_dim = 96, .page_size = 16};
    const KvLayout plain(geometry, format, {.k_row_bytes = 4, .v_row_bytes = 8, .k_page_bytes = 16, .v_page_bytes = 2});
    const TiledLayout tiled(geometry, format);
    std::mt19937 random(7);
    auto fill = [&](int64_t bytes) {
      std::vector<std::byte> v(static_cast<size_t>(bytes));
      for (auto& b : v) b = static_cast<std::byte>(random());
      return v;
    };
    auto k = fill(plain.k_plane_bytes(2));
    auto v = fill(plain.v_plane_bytes(2));
    std::vector<float> ks(static_cast<size_t>(2 * plain.page_scale_elems()), 0.5F);
    std::vector<float> vs(ks.size(), 0.25F);
    ks[5] = 3.0F;
    vs[70] = 9.0F;
    const KvLayerView view{&plain, 2, k.data(), v.data(), ks.data(), vs.data(), {}, nullptr};
    std::vector<std::byte> blocks(static_cast<size_t>(tiled.plane_bytes(2)));
    std::vector<std::byte> scales(static_cast<size_t>(tiled.scale_plane_bytes(2)));
    for (const int64_t page : {0, 1}) plain_to_tiled(view, tiled, page, {blocks, scales});

    std::vector<std::byte> k2 = k;
    std::vector<std::byte> v2 = v;
    std::vector<float> ks2(ks.size());
    std::vector<float> vs2(vs.size());
    for (int64_t i = 0; i < 2 * 3 * 16; ++i) {  // clear the rows, keep the padding
      const int64_t page = i / 48;
      const int64_t head = i / 16 % 3;
      std::memset(k2.data() + plain.k_row_offset_bytes(page, head, i % 16), 0, size_t(plain.k_row_payload_bytes()));
      std::memset(v2.data() + plain.v_row_offset_bytes(page, head, i % 16), 0, size_t(plain.v_row_payload_bytes()));
    }
    const KvLayerView back{&plain, 2, k2.data(), v2.data(), ks2.data(), vs2.data(), {}, nullptr};
    for (const int64_t page : {0, 1}) tiled_to_plain({blocks, scales}, tiled, page, back);
    EXPECT_EQ(k, k2) << format.id();
    EXPECT_EQ(v, v2) << format.id();
    EXPECT_TRUE(!tiled.has_k_scales() || ks == ks2);
    EXPECT_TRUE(!tiled.has_v_scales() || vs == vs2);
  }
}

// A page of 64 slots is four consecutive pages of 16; a head dim of 80 gets room for 96 channels on an 8-bit side only.
TEST(TiledLayout, LargerPagesAndUnevenHeadDims) {
  const KvGeometry small{.num_kv_heads = 3, .k_head_dim = 80, .v_head_dim = 80, .page_size = 16};
  KvGeometry large = small;
  large.page_size = 64;
  for (const KvFormat& format : {kNative, kFixedValue, kFixedKey, kDynamic8}) {
    const TiledLayout a(small, format);
    const TiledLayout b(large, format);
    EXPECT_EQ(a.k_block_bytes(), format.key.is_8bit() ? 16 * 96 : 16 * 80 * 2);
    EXPECT_EQ(a.block_bytes() % 512, 0);
    EXPECT_EQ(b.page_stride_bytes(), 4 * a.page_stride_bytes());
    for (int64_t slot = 0; slot < 64; ++slot) {
      EXPECT_EQ(b.k_offset_bytes(2, 1, slot, 79), a.k_offset_bytes(8 + slot / 16, 1, slot % 16, 79));
      EXPECT_EQ(b.v_offset_bytes(2, 1, slot, 79), a.v_offset_bytes(8 + slot / 16, 1, slot % 16, 79));
      if (a.has_v_scales()) {
        EXPECT_EQ(b.v_scale_offset_bytes(2, 1, slot), a.v_scale_offset_bytes(8 + slot / 16, 1, slot % 16));
      }
    }
  }
}

TEST(TiledLayout, RefusesWhatItCannotHold) {
  const KvGeometry good{.num_kv_heads = 1, .k_head_dim = 64, .v_head_dim = 64, .page_size = 16};
  KvGeometry page24 = good;
  page24.page_size = 24;
  KvGeometry dim72 = good;
  dim72.v_head_dim = 72;
  EXPECT_THROW(TiledLayout(page24, kNative), Error);
  EXPECT_THROW(TiledLayout(dim72, kNative), Error);
  EXPECT_THROW(TiledLayout(good, KvFormat{{DType::kF32}, {DType::kBF16}}), Error);
  KvGeometry other = good;
  other.num_kv_heads = 2;
  const KvLayout plain(other, kNative);
  KvLayerView view;
  view.layout = &plain;
  EXPECT_THROW(plain_to_tiled(view, TiledLayout(good, kNative), 0, {}), Error);
}

}  // namespace
}  // namespace asymkv
