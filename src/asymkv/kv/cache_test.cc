#include "asymkv/kv/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <list>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/device/device.h"
#include "asymkv/kv/rope.h"

namespace asymkv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLayers = 2;

KvFormat parse(std::string_view text, ScaleKind scale = ScaleKind::kDynamic) {
  return parse_kv_format(text, DType::kBF16, scale);
}

KvCacheConfig config_of(const KvFormat& format, const KvGeometry& geometry, int64_t num_pages) {
  KvCacheConfig config;
  config.num_layers = kLayers;
  config.num_pages = num_pages;
  if (format.scale() == ScaleKind::kFixed) config.fixed_scales.assign(kLayers, {0.5F, 0.25F});
  if (format.key.prebias) {
    const std::vector<float> bias(static_cast<size_t>(geometry.num_kv_heads * geometry.k_head_dim), 3.0F);
    config.transforms.assign(kLayers,
                             split_key_vector(bias, rope_frequencies(1e6, geometry.k_head_dim), geometry.num_kv_heads));
  }
  return config;
}

// Message of the Error that making this cache throws; empty if it throws none.
std::string refusal(const KvFormat& format, const KvCacheConfig& config, ErrorCode code = ErrorCode::kUsage) {
  try {
    const KvCache cache(KvLayout({2, 8, 8, 4}, format), config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return {};
}

TEST(KvCache, InventoryIsTheLayoutTimesPagesAndLayers) {
  constexpr int64_t kPages = 7;
  const KvGeometry geometry{3, 10, 6, 4};
  for (const std::string_view text : {"native", "f32/f16", "k16v8", "k8v16", "k8v8", "k8v8-prebias"}) {
    for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
      for (const KvPadding& padding : {KvPadding{}, KvPadding{4, 2, 8, 6}}) {
        const KvFormat format = parse(text, scale);
        const KvLayout layout(geometry, format, padding);
        const KvCache cache(layout, config_of(format, geometry, kPages));
        const CacheInventory inventory = cache.inventory();
        EXPECT_EQ(inventory.planes, layout.page_bytes().scaled(kPages * kLayers)) << format.id();
        const int64_t fixed_sides =
            (format.key.scale == ScaleKind::kFixed ? 1 : 0) + (format.value.scale == ScaleKind::kFixed ? 1 : 0);
        EXPECT_EQ(inventory.fixed_scale_bytes, fixed_sides * kLayers * 4);
        EXPECT_EQ(inventory.total(), inventory.planes.total() + inventory.fixed_scale_bytes);
        EXPECT_EQ(inventory.num_pages, kPages);
        EXPECT_EQ(inventory.num_layers, kLayers);
      }
    }
  }
}

TEST(KvCache, AAndRHoldEqualBytes) {
  for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
    const KvGeometry geometry{2, 64, 64, 16};
    const KvFormat a = parse("k16v8", scale);
    const KvFormat r = parse("k8v16", scale);
    const KvCache cache_a(KvLayout(geometry, a), config_of(a, geometry, 9));
    const KvCache cache_r(KvLayout(geometry, r), config_of(r, geometry, 9));
    EXPECT_EQ(cache_a.inventory().total(), cache_r.inventory().total());
  }
}

TEST(KvCache, NewMemoryIsNaNInEveryType) {
  const KvFormat format = parse("ki8v8");
  KvCache cache(KvLayout({2, 8, 8, 4}, format), config_of(format, {2, 8, 8, 4}, 2));
  const KvLayerView view = cache.layer(1);
  EXPECT_TRUE(std::isnan(decode_e4m3(std::to_integer<uint8_t>(view.v_plane[0]))));
  EXPECT_TRUE(std::isnan(view.k_scale(1, 1, 3)));
  EXPECT_TRUE(std::isnan(view.v_scale(0, 0, 0)));
}

TEST(KvCache, ScaleOfARowComesFromItsSideAndKind) {
  KvCacheConfig config;
  config.num_layers = kLayers;
  config.num_pages = 2;
  config.fixed_scales = {{2.0F, 3.0F}, {4.0F, 5.0F}};
  KvCache fixed(KvLayout({2, 8, 8, 4}, parse("k8v8", ScaleKind::kFixed)), config);
  EXPECT_EQ(fixed.layer(1).k_scale(1, 1, 3), 4.0F);
  EXPECT_EQ(fixed.layer(0).v_scale(0, 0, 0), 3.0F);
  KvCache reverse(KvLayout({2, 8, 8, 4}, parse("k8v16", ScaleKind::kFixed)), config);
  EXPECT_EQ(reverse.layer(0).k_scale(0, 0, 0), 2.0F);
  EXPECT_EQ(reverse.layer(0).v_scale(0, 0, 0), 1.0F) << "a 16-bit side has no scale";
  KvCache dynamic(KvLayout({2, 8, 8, 4}, parse("k8v8")), config);
  KvLayerView view = dynamic.layer(0);
  view.k_scales[dynamic.layout().scale_index(1, 1, 2)] = 9.0F;
  EXPECT_EQ(view.k_scale(1, 1, 2), 9.0F);
  EXPECT_TRUE(std::isnan(view.v_scale(1, 1, 2))) << "sides have their own scales";
}

TEST(KvCache, RefusesScalesThatAreNoScalesNamingLayerAndSide) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf, -inf, 0.0F, -0.0F, -1.0F}) {
    KvCacheConfig config = config_of(parse("k8v8", ScaleKind::kFixed), {2, 8, 8, 4}, 1);
    config.fixed_scales[1].key = bad;
    EXPECT_THAT(refusal(parse("k8v8", ScaleKind::kFixed), config), AllOf(HasSubstr("layer 1"), HasSubstr("keys")));
    EXPECT_EQ(refusal(parse("k16v8", ScaleKind::kFixed), config), "") << "16-bit keys ignore a key scale";
    config.fixed_scales[1].key = 1.0F;
    config.fixed_scales[0].value = bad;
    EXPECT_THAT(refusal(parse("k8v8", ScaleKind::kFixed), config), AllOf(HasSubstr("layer 0"), HasSubstr("values")));
    EXPECT_EQ(refusal(parse("k8v16", ScaleKind::kFixed), config), "") << "16-bit values ignore a value scale";
  }
}

TEST(KvCache, RefusesMissingScalesNamingLayerAndSide) {
  const KvFormat format = parse("k8v8", ScaleKind::kFixed);
  KvCacheConfig config = config_of(format, {2, 8, 8, 4}, 1);
  config.fixed_scales.pop_back();
  EXPECT_THAT(refusal(format, config), AllOf(HasSubstr("layer 1"), HasSubstr("keys and values")));
  EXPECT_THAT(refusal(parse("k16v8", ScaleKind::kFixed), config), AllOf(HasSubstr("layer 1"), HasSubstr("values")));
  config.fixed_scales.clear();
  EXPECT_THAT(refusal(format, config), HasSubstr("layer 0"));
  config.fixed_scales.assign(3, {});
  EXPECT_THAT(refusal(format, config), HasSubstr("3"));
}

TEST(KvCache, RefusesMissingOrMisshapenTransforms) {
  const KvFormat format = parse("k8v8-prebias");
  KvCacheConfig config = config_of(format, {2, 8, 8, 4}, 1);
  config.transforms.pop_back();
  EXPECT_THAT(refusal(format, config), HasSubstr("1 given for 2 layers"));
  config = config_of(format, {2, 16, 8, 4}, 1);
  EXPECT_THAT(refusal(format, config, ErrorCode::kInternal), HasSubstr("2 x 16"));
  config = config_of(parse("k8v8"), {2, 8, 8, 4}, 1);
  EXPECT_EQ(refusal(parse("k8v8"), config), "");
}

TEST(KvCache, RefusesCountsThatAreNoCountsAndLayersThatAreNotThere) {
  const KvFormat format = parse("native");
  KvCacheConfig config = config_of(format, {2, 8, 8, 4}, 1);
  config.num_layers = -1;
  EXPECT_THAT(refusal(format, config, ErrorCode::kInternal), HasSubstr("-1"));
  config.num_layers = 1;
  config.num_pages = -3;
  EXPECT_THAT(refusal(format, config, ErrorCode::kInternal), HasSubstr("-3"));
  KvCache cache(KvLayout({2, 8, 8, 4}, format), config_of(format, {2, 8, 8, 4}, 1));
  for (const int64_t bad : {-1L, 2L, INT64_MAX, INT64_MIN}) {
    EXPECT_THROW(cache.layer(bad), Error);
    EXPECT_THROW(cache.k_counters(bad), Error);
    EXPECT_THROW(cache.v_counters(bad), Error);
  }
}

// A small cache whose rows are stamped with the token they hold, in every layer, head, side and scale.
class StampedCache {
 public:
  explicit StampedCache(std::string_view format, int64_t num_pages)
      : cache_(KvLayout({2, 8, 12, 4}, parse(format)), config_of(parse(format), {2, 8, 12, 4}, num_pages)) {}
  KvCache& cache() { return cache_; }

  void write(int64_t slot, float stamp) {
    for_each_row(slot, [&](std::byte* row, int64_t bytes, float* scale, float offset) {
      std::memset(row, 0, static_cast<size_t>(bytes));
      const float value = stamp + offset;
      std::memcpy(row, &value, sizeof(value));
      if (scale != nullptr) *scale = value;
    });
  }
  bool holds(int64_t slot, float stamp) {
    bool same = true;
    for_each_row(slot, [&](const std::byte* row, int64_t, const float* scale, float offset) {
      float value = 0.0F;
      std::memcpy(&value, row, sizeof(value));
      same = same && value == stamp + offset && (scale == nullptr || *scale == stamp + offset);
    });
    return same;
  }

 private:
  template <typename Visit>
  void for_each_row(int64_t slot, Visit visit) {
    const KvLayout& layout = cache_.layout();
    const int64_t page = slot / layout.geometry().page_size;
    const int64_t place = slot % layout.geometry().page_size;
    float offset = 0.0F;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const KvLayerView view = cache_.layer(layer);
      for (int64_t head = 0; head < layout.geometry().num_kv_heads; ++head) {
        const int64_t scale_idx = layout.scale_index(page, head, place);
        visit(view.k_plane + layout.k_row_offset_bytes(page, head, place), layout.k_row_payload_bytes(),
              view.k_scales == nullptr ? nullptr : view.k_scales + scale_idx, offset += 0.125F);
        visit(view.v_plane + layout.v_row_offset_bytes(page, head, place), layout.v_row_payload_bytes(),
              view.v_scales == nullptr ? nullptr : view.v_scales + scale_idx, offset += 0.125F);
      }
    }
  }
  KvCache cache_;
};

int64_t slot_of(const SequencePages& sequence, int64_t token) {
  const int64_t page_size = sequence.cache().layout().geometry().page_size;
  return page_index(sequence.pages()[static_cast<size_t>(token / page_size)]) * page_size + token % page_size;
}

TEST(SequencePages, AppendReturnsTheSlotsOfTheNewTokens) {
  StampedCache stamped("native", 4);
  SequencePages sequence(stamped.cache());
  EXPECT_TRUE(sequence.append(0).empty());
  EXPECT_EQ(sequence.append(3).size(), 3U);
  const std::vector<int64_t> slots = sequence.append(6);
  ASSERT_EQ(slots.size(), 6U);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(slots[static_cast<size_t>(i)], slot_of(sequence, 3 + i));
  EXPECT_EQ(sequence.num_tokens(), 9);
  EXPECT_EQ(sequence.pages().size(), 3U);
  EXPECT_EQ(stamped.cache().pool().num_free(), 1);
}

TEST(SequencePages, ExhaustionChangesNothing) {
  StampedCache stamped("native", 2);
  SequencePages sequence(stamped.cache());
  sequence.append(5);
  const std::vector<PageId> before(sequence.pages().begin(), sequence.pages().end());
  try {
    sequence.append(4);
    ADD_FAILURE() << "nine tokens in eight slots";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("4 tokens"), HasSubstr("0 of 2")));
  }
  EXPECT_EQ(sequence.num_tokens(), 5);
  EXPECT_EQ(std::vector<PageId>(sequence.pages().begin(), sequence.pages().end()), before);
  EXPECT_EQ(sequence.append(3).size(), 3U);
  EXPECT_THROW((void)sequence.fork().append(1), Error);
  EXPECT_EQ(stamped.cache().pool().num_free(), 0);
  stamped.cache().pool().check_integrity();
}

TEST(SequencePages, AForkThatFindsNoPageGivesEverythingBack) {
  StampedCache stamped("native", 2);
  SequencePages sequence(stamped.cache());
  sequence.append(5);
  EXPECT_THROW((void)sequence.fork(), Error);
  EXPECT_EQ(stamped.cache().pool().ref_count(sequence.pages()[0]), 1);
  stamped.cache().pool().check_integrity();
}

TEST(SequencePages, ForkSharesWholePagesAndCopiesThePartialOne) {
  for (const std::string_view format : {"native", "k8v8", "k16v8", "ki8v8"}) {
    StampedCache stamped(format, 8);
    SequencePages first(stamped.cache());
    float stamp = 1.0F;
    for (const int64_t slot : first.append(6)) stamped.write(slot, stamp++);
    SequencePages second = first.fork();
    EXPECT_EQ(second.num_tokens(), 6);
    EXPECT_EQ(second.pages()[0], first.pages()[0]);
    EXPECT_NE(second.pages()[1], first.pages()[1]);
    for (int64_t token = 0; token < 6; ++token) {
      EXPECT_TRUE(stamped.holds(slot_of(second, token), static_cast<float>(token + 1))) << format << " " << token;
    }
    stamped.write(first.append(1)[0], 70.0F);
    stamped.write(second.append(1)[0], 80.0F);
    EXPECT_TRUE(stamped.holds(slot_of(first, 6), 70.0F));
    EXPECT_TRUE(stamped.holds(slot_of(second, 6), 80.0F));
  }
}

// After a truncation into a shared page, new tokens must not overwrite the other sequence's.
TEST(SequencePages, AppendingIntoASharedPageCopiesItFirst) {
  StampedCache stamped("k8v8", 4);
  SequencePages first(stamped.cache());
  float stamp = 1.0F;
  for (const int64_t slot : first.append(8)) stamped.write(slot, stamp++);
  SequencePages second = first.fork();
  second.truncate(5);
  for (const int64_t slot : second.append(2)) stamped.write(slot, 50.0F);
  for (int64_t token = 0; token < 8; ++token) {
    EXPECT_TRUE(stamped.holds(slot_of(first, token), static_cast<float>(token + 1))) << token;
  }
  for (int64_t token = 0; token < 5; ++token) {
    EXPECT_TRUE(stamped.holds(slot_of(second, token), static_cast<float>(token + 1))) << token;
  }
  EXPECT_TRUE(stamped.holds(slot_of(second, 5), 50.0F));
  EXPECT_TRUE(stamped.holds(slot_of(second, 6), 50.0F));
  EXPECT_EQ(stamped.cache().pool().num_free(), 1);
  stamped.cache().pool().check_integrity();
}

TEST(SequencePages, ACopyThatFindsNoPageChangesNothing) {
  StampedCache stamped("native", 2);
  SequencePages first(stamped.cache());
  first.append(8);
  SequencePages second = first.fork();
  second.truncate(5);
  EXPECT_THROW(second.append(1), Error);
  EXPECT_EQ(second.num_tokens(), 5);
  EXPECT_EQ(stamped.cache().pool().ref_count(first.pages()[1]), 2);
}

TEST(SequencePages, MovesAndOddCounts) {
  StampedCache stamped("native", 4);
  SequencePages first(stamped.cache());
  first.append(5);
  SequencePages second = std::move(first);
  EXPECT_EQ(second.num_tokens(), 5);
  SequencePages third(stamped.cache());
  third.append(1);
  third = std::move(second);
  EXPECT_EQ(third.num_tokens(), 5);
  EXPECT_THROW(third.truncate(6), Error);
  EXPECT_THROW(third.truncate(-1), Error);
  EXPECT_THROW(third.append(-1), Error);
  EXPECT_THROW(third.append(INT64_MAX), Error);
  EXPECT_EQ(third.num_tokens(), 5);
  third.truncate(0);
  EXPECT_TRUE(third.pages().empty());
  stamped.cache().pool().check_integrity();
}

// Random appends, truncations, forks and ends, against sequences kept as plain lists of stamps.
class StatefulRun {
 public:
  StatefulRun(std::string_view format, uint32_t seed) : random_(seed), stamped_(format, kPages) {}

  void step() {
    const uint32_t action = random_() % 8;
    if (live_.empty() || (action == 0 && live_.size() < 6)) {
      live_.push_back({SequencePages(stamped_.cache()), {}});
      return;
    }
    auto it = live_.begin();
    std::advance(it, static_cast<int64_t>(random_() % live_.size()));
    if (action <= 4) {
      append(*it, static_cast<int64_t>(random_() % 9));
    } else if (action == 5) {
      const auto keep = static_cast<int64_t>(random_() % (it->stamps.size() + 1));
      it->pages.truncate(keep);
      it->stamps.resize(static_cast<size_t>(keep));
    } else if (action == 6 && live_.size() < 6) {
      fork(*it);
    } else {
      live_.erase(it);
    }
  }

  void check() {
    std::set<PageId> held;
    for (const Live& live : live_) {
      ASSERT_EQ(live.pages.num_tokens(), static_cast<int64_t>(live.stamps.size()));
      held.insert(live.pages.pages().begin(), live.pages.pages().end());
      for (size_t token = 0; token < live.stamps.size(); ++token) {
        ASSERT_TRUE(stamped_.holds(slot_of(live.pages, static_cast<int64_t>(token)), live.stamps[token])) << token;
      }
    }
    ASSERT_EQ(stamped_.cache().pool().num_free(), kPages - static_cast<int64_t>(held.size()));
    stamped_.cache().pool().check_integrity();
  }
  int64_t num_refused() const { return num_refused_; }

 private:
  static constexpr int64_t kPages = 12;
  struct Live {
    SequencePages pages;
    std::vector<float> stamps;
  };

  void append(Live& live, int64_t count) {
    try {
      for (const int64_t slot : live.pages.append(count)) {
        live.stamps.push_back(++stamp_);
        stamped_.write(slot, stamp_);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      ++num_refused_;
    }
  }
  void fork(const Live& live) {
    try {
      live_.push_back({live.pages.fork(), live.stamps});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
      ++num_refused_;
    }
  }

  std::mt19937 random_;
  StampedCache stamped_;
  std::list<Live> live_;
  float stamp_ = 0.0F;
  int64_t num_refused_ = 0;
};

TEST(SequencePages, AgreesWithANaiveModel) {
  for (const std::string_view format : {"native", "k8v16", "ki8v8"}) {
    StatefulRun run(format, 6);
    for (int i = 0; i < 4'000; ++i) {
      run.step();
      run.check();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << format << " step " << i;
    }
    EXPECT_GT(run.num_refused(), 20) << "the pool was never full";
  }
}

// Without a GPU, a cache in device memory is refused; with one, it holds the layout's bytes in the tiled layout.
TEST(KvCache, DeviceMemory) {
  const KvLayout layout({2, 64, 64, 16}, parse_kv_format("k8v8", DType::kBF16, ScaleKind::kDynamic));
  KvCacheConfig config;
  config.num_layers = 3;
  config.num_pages = 5;
  config.scale_source = "dynamic";
  const KvCache on_host(layout, config);
  EXPECT_EQ(on_host.layout_id(), "plain-1");
  config.memory = KvMemory::kDevice;
  if (list_devices().devices.empty()) {
    EXPECT_THROW(KvCache(layout, config), Error);
    return;
  }
  KvCache on_device(layout, config);
  EXPECT_EQ(on_device.layout_id(), "tiled-1");
  EXPECT_EQ(on_device.inventory().planes, on_host.inventory().planes);
  EXPECT_EQ(on_device.layer(1).k_plane, nullptr);
  EXPECT_NE(on_device.layer(1).tiled_blocks, nullptr);
  EXPECT_NE(on_device.layer(1).tiled_scales, nullptr);
}

}  // namespace
}  // namespace asymkv
