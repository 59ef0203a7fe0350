#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/base/error_testkit.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/json.h"
#include "asymkv/base/jsonl.h"
#include "asymkv/base/parallel.h"
#include "asymkv/base/progress.h"

namespace asymkv {
namespace {

std::filesystem::path scratch(const std::string& name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("base_test_{}", ::getpid());
  std::filesystem::create_directories(folder);
  return folder / name;
}

TEST(Hash, Sha256MatchesFips180Vectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Error, CheckPrintsTheValues) {
  const int got = 3;
  try {
    ASYMKV_CHECK(got == 4, "got {}", got);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(e.what()).find("got 3"), std::string::npos);
  }
}

TEST(File, AtomicWriteReplacesAndLeavesNoTemporary) {
  const auto path = scratch("atomic.txt");
  write_file_atomic(path, "old");
  write_file_atomic(path, "new");
  EXPECT_EQ(read_text_file(path), "new");
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
  }
}

TEST(File, MissingFileNamesThePath) {
  try {
    read_text_file("/nonexistent/file.txt");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(e.what()).find("/nonexistent/file.txt"), std::string::npos);
  }
}

TEST(Jsonl, TornLastLineIsCutAndReported) {
  const auto path = scratch("torn.jsonl");
  std::filesystem::remove(path);
  {
    JsonlAppender appender(path);
    appender.append("{\"a\":1}\n{\"a\":2}\n");
  }
  std::ofstream(path, std::ios::app) << "{\"a\":";
  const JsonlRepair first = read_jsonl_repair(path);
  EXPECT_EQ(first.lines, (std::vector<std::string>{"{\"a\":1}", "{\"a\":2}"}));
  EXPECT_EQ(first.torn_bytes, 5);
  EXPECT_EQ(read_jsonl_repair(path).torn_bytes, 0);
}

TEST(Json, CanonicalSortsKeysAndRefusesNan) {
  EXPECT_EQ(canonical_json(Json::parse("{\"b\":1,\"a\":[1.5,null]}")), "{\"a\":[1.5,null],\"b\":1}");
  EXPECT_THROW(canonical_json(Json(std::nan(""))), Error);
  EXPECT_THROW(canonical_json(Json::array({std::numeric_limits<double>::infinity()})), Error);
}

TEST(Json, DeepNestingIsRefusedBeforeAnythingRecurses) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(256), "x"));
  EXPECT_THROW(parse_json(nested(257), "x"), Error);
  EXPECT_THROW(parse_json(std::string("{}\0 more", 8), "x"), Error);
  EXPECT_THROW(parse_json("{\"a\": 1e400}", "x"), Error);
  EXPECT_THROW(parse_json(std::string(1000000, '{'), "x"), Error);
  EXPECT_NO_THROW(parse_json("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"]", "x"));
}

TEST(Json, AKeyTwiceInOneObjectIsRefusedByName) {
  const auto refuse = [](const std::string& text, std::string_view key) {
    test::expect_error([&] { parse_json(text, "x.json"); }, ErrorCode::kBadInput,
                       fmt::format("x.json has the key {} twice in one object", key));
  };
  refuse(R"({"kv": "f16", "kv": "f16"})", R"("kv")");
  refuse(R"([1, {"a": {"b": 1, "c": [":"], "b": {}}}])", R"("b")");
  refuse(R"({"a": 1, "\u0061": 2})", R"("a")");
  refuse(R"({"": 1, "": 2})", R"("")");
  refuse("{\"\\n\": {}, \"b:\": \":\", \"\\n\": []}", R"("\n")");
  EXPECT_EQ(parse_json(R"([{"a": ":\":"}, {"a": {"a": {"a:b": []}}}, {}, "::"])", "x").size(), 4U);
}

TEST(Json, FieldErrorsNameFieldAndType) {
  const Json object = parse_json("{\"n\": \"five\"}", "config.json");
  try {
    require_int(object, "n", "config.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "config.json: field \"n\" must be an integer, found string");
  }
  EXPECT_EQ(int_or(object, "absent", 7, "config.json"), 7);
  EXPECT_THROW(int_or(object, "n", 7, "config.json"), Error);
}

TEST(Parallel, EveryIterationOnceAndExceptionsArrive) {
  std::mutex mutex;
  std::multiset<int64_t> seen;
  parallel_for(1000, [&](int64_t i, int thread_idx) {
    ASSERT_LT(thread_idx, num_threads());
    const std::scoped_lock lock(mutex);
    seen.insert(i);
  });
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 1000U);
  EXPECT_THROW(parallel_for(50,
                            [](int64_t i, int) {
                              if (i == 7) throw Error(ErrorCode::kInternal, "seven");
                            }),
               Error);
}

TEST(Progress, DurationsReadWell) {
  EXPECT_EQ(format_duration(42.4), "42s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(7800), "2h10m");
}

}  // namespace
}  // namespace asymkv
