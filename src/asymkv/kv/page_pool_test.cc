#include "asymkv/kv/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

using ::testing::HasSubstr;

TEST(PagePool, HandsOutEveryPageOnceAndThenRefuses) {
  PagePool pool(5);
  std::set<PageId> taken;
  for (int i = 0; i < 5; ++i) {
    const PageId id = pool.allocate();
    EXPECT_TRUE(taken.insert(id).second);
    EXPECT_EQ(pool.ref_count(id), 1);
  }
  EXPECT_EQ(pool.num_free(), 0);
  try {
    pool.allocate();
    ADD_FAILURE() << "allocated a sixth page";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(error.what(), HasSubstr("5 pages"));
  }
  pool.check_integrity();
}

TEST(PagePool, APageIsFreeWhenItsLastHolderLetsGo) {
  PagePool pool(1);
  const PageId id = pool.allocate();
  pool.retain(id);
  pool.release(id);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(id);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.allocate(), id);
}

TEST(PagePool, RefusesPagesThatNobodyHoldsOrThatDoNotExist) {
  PagePool pool(2);
  const PageId id = pool.allocate();
  pool.release(id);
  EXPECT_THROW(pool.release(id), Error);
  EXPECT_THROW(pool.retain(id), Error);
  for (const int32_t bad : {-1, 2, INT32_MIN, INT32_MAX}) {
    EXPECT_THROW(pool.release(static_cast<PageId>(bad)), Error);
    EXPECT_THROW(pool.retain(static_cast<PageId>(bad)), Error);
    EXPECT_THROW((void)pool.ref_count(static_cast<PageId>(bad)), Error);
  }
  EXPECT_THROW(PagePool(-1), Error);
  EXPECT_EQ(PagePool(0).num_free(), 0);
  pool.check_integrity();
}

// Random calls against the simplest model: a map from page to holders.
TEST(PagePool, AgreesWithANaiveModel) {
  std::mt19937 random(5);
  constexpr int64_t kPages = 17;
  PagePool pool(kPages);
  std::map<PageId, int64_t> model;
  for (int step = 0; step < 20'000; ++step) {
    const auto pick = [&] {
      auto it = model.begin();
      std::advance(it, static_cast<int64_t>(random() % model.size()));
      return it;
    };
    const uint32_t action = random() % 4;
    if (action < 2 && static_cast<int64_t>(model.size()) < kPages) {
      EXPECT_TRUE(model.emplace(pool.allocate(), 1).second);
    } else if (action == 2 && !model.empty()) {
      const auto it = pick();
      pool.retain(it->first);
      ++it->second;
    } else if (!model.empty()) {
      const auto it = pick();
      pool.release(it->first);
      if (--it->second == 0) model.erase(it);
    }
    ASSERT_EQ(pool.num_free(), kPages - static_cast<int64_t>(model.size()));
    for (const auto& [id, holders] : model) ASSERT_EQ(pool.ref_count(id), holders);
    pool.check_integrity();
  }
}

}  // namespace
}  // namespace asymkv
