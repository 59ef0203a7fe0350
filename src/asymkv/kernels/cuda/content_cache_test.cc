#include "asymkv/kernels/cuda/content_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace asymkv::cuda {
namespace {

TEST(ContentCache, MakesAValueOnceAndKeepsTheLastOnesInPlace) {
  ContentCache<std::unique_ptr<int>> cache(4);
  int made = 0;
  const auto get = [&](int i) -> const std::unique_ptr<int>& {
    return cache.get(std::to_string(i), [&] {
      ++made;
      return std::make_unique<int>(i);
    });
  };
  const int* first = get(0).get();
  for (int i = 1; i < 5; ++i) EXPECT_EQ(*get(i), i);
  EXPECT_EQ(get(0).get(), first) << "four others were asked for since";
  EXPECT_EQ(made, 5);
  for (int i = 10; i < 20; ++i) get(i);
  EXPECT_EQ(*get(0), 0);
  EXPECT_EQ(made, 16) << "an old value goes and is made again";
}

TEST(ContentKey, TellsArraysApart) {
  const std::vector<int> ab = {1, 2}, c = {3}, a = {1}, bc = {2, 3};
  EXPECT_NE(ContentKey().add(ab).add(c).take(), ContentKey().add(a).add(bc).take());
  EXPECT_EQ(ContentKey().add(ab).add(c).take(), ContentKey().add(ab).add(c).take());
}

}  // namespace
}  // namespace asymkv::cuda
