// Runs the built `asymkv stats ...`: documented examples, their JSON, and bad inputs with exit code and sentence.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "asymkv/base/file.h"
#include "asymkv/base/json.h"

namespace asymkv {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::filesystem::path scratch(const std::string& name) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("stats_cli_test_{}", ::getpid());
  std::filesystem::create_directories(folder);
  return folder / name;
}

std::filesystem::path write_pairs(const std::string& name, const std::string& text) {
  const auto path = scratch(name);
  write_file_atomic(path, text);
  return path;
}

// `arguments` is shell text.
Outcome run(const std::string& arguments) {
  const auto out = scratch("out"), err = scratch("err");
  const std::string line =
      fmt::format("'{}' {} >'{}' 2>'{}' </dev/null", ASYMKV_PROGRAM, arguments, out.string(), err.string());
  const int status = std::system(line.c_str());
  EXPECT_TRUE(WIFEXITED(status)) << arguments;
  return {WEXITSTATUS(status), read_text_file(out), read_text_file(err)};
}

// Runs with --json: exit code 0, one object and nothing else on stdout, nothing on stderr.
Json json_of(const std::string& arguments) {
  const Outcome got = run(arguments + " --json");
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(got.err, IsEmpty()) << arguments;
  return parse_json(got.out, arguments);
}

std::set<std::string> keys(const Json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

double number(const Json& object, const std::string& field) {
  return require_number(object, field, "stdout");
}

TEST(StatsCli, CasesThatAPassNeeds) {
  const Json answer = json_of("stats cases --divisor 24 --loss-pct 0,1,2 --power-pct 80");
  const Json& plans = answer.at("plans");
  ASSERT_EQ(plans.size(), 3);
  EXPECT_EQ(plans[0].at("cases"), 306);
  EXPECT_EQ(plans[0].at("most_losses"), 0);
  EXPECT_GT(plans[1].at("cases"), 1319);
  EXPECT_GE(plans[1].at("power"), 0.8);
  EXPECT_TRUE(plans[2].at("cases").is_null());
  EXPECT_THAT(run("stats cases --loss-pct 2").err, HasSubstr("none do"));
  const Outcome refused = run("stats cases --power-pct 100");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--power-pct must lie between"));
}

// A limit that nothing can reach is refused by its option before the table, with --json and without.
TEST(StatsCli, LimitsOutOfReachAreRefusedBeforeAWordIsPrinted) {
  for (const std::string json : {"", " --json"}) {
    for (const std::string option : {"--limit-pct", "--margin-pp"}) {
      const std::string value = option == "--limit-pct" ? "1e-12" : "-1e-12";
      const Outcome got = run(fmt::format("stats paired --n 10 --lost 0 --gained 0 {}={}{}", option, value, json));
      EXPECT_EQ(got.exit_code, 2);
      EXPECT_THAT(got.out, IsEmpty());
      EXPECT_TRUE(got.err.starts_with(fmt::format("asymkv: {} {}: ", option, value))) << got.err;
    }
  }
}

TEST(StatsCli, Paired) {
  const Json got = json_of("stats paired --n 1319 --lost 6 --gained 3 --divisor 24");
  EXPECT_EQ(keys(got), (std::set<std::string>{"gross_loss_pct", "gross_upper_pct", "gross_lower_pct", "net_pp",
                                              "net_lower_pp", "net_upper_pp", "alpha", "mcnemar_p", "mcnemar_log10_p",
                                              "preservation", "aggregate"}));
  EXPECT_NEAR(number(got, "gross_loss_pct"), 600.0 / 1319.0, 1e-12);
  EXPECT_NEAR(number(got, "gross_upper_pct"), 1.282366, 5e-7);
  EXPECT_NEAR(number(got, "net_lower_pp"), -1.170859, 5e-7);
  EXPECT_EQ(number(got, "alpha"), 0.05 / 24);
  EXPECT_EQ(number(got, "mcnemar_p"), 0.5078125);
  EXPECT_EQ(got["preservation"], (Json{{"verdict", "pass"}, {"limit_pct", 2.0}}));
  EXPECT_EQ(got["aggregate"], (Json{{"verdict", "not_established"}, {"margin_pp", -1.0}}));
}

TEST(StatsCli, PairedTakesAlphaLimitAndMargin) {
  const Json divisor = json_of("stats paired --n 1319 --lost 20 --gained 17 --divisor 1");
  EXPECT_EQ(json_of("stats paired --n 1319 --lost 20 --gained 17 --alpha 0.05"), divisor);
  EXPECT_EQ(json_of("stats paired --n 1319 --lost 20 --gained 17"), divisor);
  const Json wide = json_of("stats paired --n 1319 --lost 20 --gained 17 --limit-pct 5 --margin-pp -2");
  EXPECT_EQ(wide["preservation"], (Json{{"verdict", "pass"}, {"limit_pct", 5.0}}));
  EXPECT_EQ(wide["aggregate"], (Json{{"verdict", "pass"}, {"margin_pp", -2.0}}));
  EXPECT_EQ(json_of("stats paired --n 1319 --lost 1200 --gained 0")["aggregate"]["verdict"], "degraded");
}

TEST(StatsCli, Binomial) {
  const Json two = json_of("stats binomial --k 18 --n 20 --level 0.95");
  EXPECT_EQ(keys(two), (std::set<std::string>{"lower", "upper"}));
  EXPECT_NEAR(number(two, "lower"), .6830172860, 5e-11);
  EXPECT_NEAR(number(two, "upper"), .9876514728, 5e-11);
  EXPECT_NEAR(number(json_of("stats binomial --k 17 --n 1319 --level 0.95 --sided upper"), "upper"), .019270, 5e-7);
  EXPECT_EQ(number(json_of("stats binomial --k 17 --n 1319 --sided lower"), "upper"), 1.0);
}

TEST(StatsCli, Tango) {
  const Json got = json_of("stats tango --table 4,9,3,16 --level 0.95");
  EXPECT_EQ(keys(got), (std::set<std::string>{"estimate", "lower", "upper"}));
  EXPECT_EQ(number(got, "estimate"), 6.0 / 32.0);
  EXPECT_NEAR(number(got, "lower"), -0.027090, 5e-7);
  EXPECT_NEAR(number(got, "upper"), 0.389697, 5e-7);
}

TEST(StatsCli, ExactTests) {
  const Json mcnemar = json_of("stats mcnemar --lost 6 --gained 16");
  EXPECT_EQ(keys(mcnemar), (std::set<std::string>{"p", "log10_p"}));
  EXPECT_NEAR(number(mcnemar, "p"), 0.052479, 5e-7);
  EXPECT_NEAR(number(json_of("stats mcnemar --lost 1199 --gained 0"), "log10_p"), std::log10(2.32) - 361, 1e-3);
  EXPECT_TRUE(json_of("stats mcnemar --lost 1199 --gained 0")["p"].is_null());
  EXPECT_TRUE(json_of("stats sign --positive 1200 --n 1200")["p"].is_null());
  EXPECT_TRUE(json_of("stats paired --n 1319 --lost 1199 --gained 0")["mcnemar_p"].is_null());
  const Json sign = json_of("stats sign --positive 9 --n 10");
  EXPECT_EQ(keys(sign), (std::set<std::string>{"p", "log10_p"}));
  EXPECT_EQ(number(sign, "p"), .021484375);
}

TEST(StatsCli, Holm) {
  const Json got = json_of("stats holm 0.01 0.8 2.32e-361 0.02");
  EXPECT_EQ(keys(got), (std::set<std::string>{"adjusted", "log10_adjusted"}));
  EXPECT_EQ(got["adjusted"], (Json{0.03, 0.8, nullptr, 0.04}));  // no double holds 9.28e-361
  EXPECT_NEAR(got["log10_adjusted"][2].get<double>(), std::log10(9.28) - 361, 1e-9);
  EXPECT_EQ(json_of("stats holm 0 0.5")["adjusted"], (Json{0.0, 0.5}));  // a zero that was given
  EXPECT_THAT(run("stats holm 2.32e-361 0.5").err, HasSubstr("4.64e-361"));
}

TEST(StatsCli, Looks) {
  const Json got = json_of("stats looks --n 1319 --looks 0.5,1 --spending pocock --divisor 8 --loss-pct 0,2");
  EXPECT_EQ(keys(got), (std::set<std::string>{"alpha", "looks", "expectations"}));
  ASSERT_EQ(got["looks"].size(), 2U);
  EXPECT_EQ(got["looks"][0]["cases"], 660);
  EXPECT_EQ(got["looks"][1]["cases"], 1319);
  EXPECT_NEAR(got["looks"][0]["level"].get<double>() + got["looks"][1]["level"].get<double>(), 0.05 / 8, 1e-15);
  ASSERT_EQ(got["expectations"].size(), 2U);
  EXPECT_EQ(got["expectations"][0]["pass"], 1.0);
  EXPECT_NEAR(got["expectations"][0]["cases_share"].get<double>(), 660.0 / 1319.0, 1e-12);
  EXPECT_LE(got["expectations"][1]["pass"].get<double>(), 0.05 / 8);
  EXPECT_THAT(run("stats looks --n 1319 --looks 1 --divisor 24").err, HasSubstr("12"));
}

TEST(StatsCli, Speed) {
  std::string rows;
  for (int i = 0; i < 9; ++i) rows += "105 100\n";
  const auto faster = write_pairs("faster", rows + "99 100\n"), tied = write_pairs("tied", "1 1\n2 2\n");
  const Json got = json_of(fmt::format("stats speed --pairs '{}' --pairs '{}'", faster.string(), tied.string()));
  ASSERT_EQ(got["decisions"].size(), 2U);
  EXPECT_EQ(got["decisions"][0]["p_holm"], 2 * .021484375);
  EXPECT_EQ(got["decisions"][0]["verdict"], "faster");
  EXPECT_EQ(got["decisions"][1]["ties"], 2);
  EXPECT_EQ(got["decisions"][1]["verdict"], "not_shown");
  const std::string one = fmt::format("stats speed --pairs '{}'", faster.string());
  EXPECT_EQ(json_of(one + " --failed-requests 2")["decisions"][0]["verdict"], "invalid");
  EXPECT_EQ(json_of(one + " --min-effect-pct 6")["decisions"][0]["verdict"], "not_shown");
  EXPECT_THAT(run(one).err, HasSubstr("faster ("));
}

TEST(StatsCli, Bootstrap) {
  const auto equal = write_pairs("equal", "3.1 3.1\n2.7 2.7\r\n\n 0.5\t0.5");
  EXPECT_EQ(json_of(fmt::format("stats bootstrap --pairs '{}' --resamples 1000 --seed 9", equal.string())),
            (Json{{"ratio_minus_1", 0.0}, {"lower", 0.0}, {"upper", 0.0}, {"seed", 9}}));
  const auto mixed = write_pairs("mixed", "3.0 3.01\n2.5 2.49\n2.9 2.95\n3.3 3.31\n");
  const auto shuffled = write_pairs("shuffled", "2.9 2.95\n3.3 3.31\n2.5 2.49\n3.0 3.01\n");
  const Json got = json_of(fmt::format("stats bootstrap --pairs '{}' --alpha 0.0125", mixed.string()));
  EXPECT_EQ(json_of(fmt::format("stats bootstrap --pairs '{}' --alpha 0.0125", shuffled.string())), got);
  EXPECT_NEAR(number(got, "ratio_minus_1"), 11.76 / 11.7 - 1.0, 1e-12);
  EXPECT_LT(number(got, "lower"), number(got, "ratio_minus_1"));
  EXPECT_GT(number(got, "upper"), number(got, "ratio_minus_1"));
}

TEST(StatsCli, HumanFormSaysWhatItMeans) {
  const Outcome got = run("stats paired --n 1319 --lost 6 --gained 3 --divisor 24");
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_THAT(got.err, HasSubstr("1.2824"));
  EXPECT_THAT(got.err, HasSubstr("Answer preservation passes"));
  EXPECT_THAT(got.err, HasSubstr("not established"));
  EXPECT_THAT(got.err, HasSubstr("n >= 306 for the limit and n >= 813 for the margin"));
  EXPECT_THAT(got.err, HasSubstr("at most 12 lost"));
}

// Every subcommand's help ends in an example that works as printed.
TEST(StatsCli, HelpHasAnExampleThatRuns) {
  for (const char* name : {"losses.txt", "blocks.txt"}) write_pairs(name, "3.0 3.01\n2.5 2.49\n");
  for (const char* name : {"paired", "binomial", "tango", "mcnemar", "holm", "sign", "bootstrap", "looks", "speed"}) {
    const Outcome help = run(fmt::format("stats {} --help", name));
    EXPECT_EQ(help.exit_code, 0);
    const std::string marker = "Example:\n  asymkv ";
    const size_t at = help.out.find(marker);
    ASSERT_NE(at, std::string::npos) << name;
    const size_t begin = at + marker.size();
    std::string example = help.out.substr(begin, help.out.find('\n', begin) - begin);
    for (const std::string file : {"losses.txt", "blocks.txt"}) {
      if (const size_t place = example.find(file); place != std::string::npos) {
        example.replace(place, file.size(), scratch(file).string());
      }
    }
    EXPECT_FALSE(json_of(example).empty()) << example;
  }
}

struct BadLine {
  const char* arguments;
  int exit_code;
  const char* sentence;
};

TEST(StatsCli, BadInputsAreRefusedWithASentence) {
  for (const auto& [arguments, exit_code, sentence] :
       {BadLine{"paired --n 0 --lost 0 --gained 0", 2, "n must be between 1 and"},
        {"paired --n 5 --lost 7 --gained 0", 2, "lost must be between 0 and n = 5, but it is 7"},
        {"paired --n 5 --lost 3 --gained 3", 2, "lost + gained must not exceed n = 5"},
        {"paired --n -5 --lost 0 --gained 0", 2, "n must be between 1"},
        {"paired --n 99999999999999999999 --lost 0 --gained 0", 2,
         "--n: \"99999999999999999999\" is no integer of 64 bits"},
        {"paired --n 5.5 --lost 0 --gained 0", 2, "--n"},
        {"paired --n nan --lost 0 --gained 0", 2, "--n"},
        {"paired --n 5 --gained 0", 2, "--lost"},
        {"paired --n 5 --lost 1 --gained 0 --alpha nan", 2, "--alpha must lie between 0 and 0.5"},
        {"paired --n 5 --lost 1 --gained 0 --alpha 0.5", 2, "--alpha must lie between 0 and 0.5"},
        {"paired --n 5 --lost 1 --gained 0 --divisor 0", 2, "--divisor must be a number >= 1"},
        {"paired --n 5 --lost 1 --gained 0 --divisor nan", 2, "--divisor must be a number >= 1"},
        {"paired --n 5 --lost 1 --gained 0 --divisor 2 --alpha 0.1", 2, "excludes"},
        {"paired --n 5 --lost 1 --gained 0 --limit-pct 0", 2, "--limit-pct must lie"},
        {"paired --n 5 --lost 1 --gained 0 --margin-pp 1", 2, "--margin-pp must lie"},
        {"binomial --k 1 --n 20 --level 1.5", 2, "level must lie between 0 and 1"},
        {"binomial --k 1 --n 20 --level nan", 2, "level must lie between 0 and 1"},
        {"binomial --k 21 --n 20", 2, "k must be between 0 and n = 20"},
        {"binomial --k 1 --n 20 --sided left", 2, "--sided must be two, upper or lower"},
        {"binomial --k 1 --n 20 --sided upper --level 0.4", 2, "one-sided bound must lie between 0.5 and 1"},
        {"tango --table 1,2,3", 2, "--table needs four counts"},
        {"tango --table 1,2,3,4,5", 2, "--table needs four counts"},
        {"tango --table 1,2,,4", 2, "'' is no count"},
        {"tango --table 1,2,-3,4", 2, "'-3' is no count"},
        {"tango --table 0,0,0,0", 2, "n must be between 1"},
        {"tango --table 9223372036854775807,1,1,1", 2, "is no count"},
        {"mcnemar --lost -1 --gained 3", 2, "lost must be between 0"},
        {"sign --positive 0 --n 0", 2, "n must be between 1"},
        {"sign --positive 11 --n 10", 2, "positive must be between 0 and n = 10"},
        {"holm", 2, "P is required"},
        {"holm 0.1 1.2", 2, "'1.2' is no p value"},
        {"holm nan", 2, "'nan' is no p value"},
        {"holm 0.1x", 2, "'0.1x' is no p value"},
        {"holm -- -0.1", 2, "'-0.1' is no p value"},
        {"bootstrap --pairs /no/such/file", 3, "/no/such/file"},
        {"bootstrap --pairs /", 3, "/ is not a regular file"},
        {"bootstrap --pairs x --alpha 0.7", 2, "--alpha must lie"},
        {"looks --n 0", 2, "--n must be between 1"},
        {"looks --n 9 --looks 0.5,0.5,1", 2, "0.5 follows 0.5"},
        {"looks --n 3 --looks 0.5,0.6,1", 2, "2 follows 2"},
        {"looks --n 9 --spending haybittle", 2, "choose obrien-fleming or pocock"},
        {"looks --n 9 --limit-pct 0", 2, "--limit-pct must lie"},
        {"speed --pairs /no/such/file", 3, "/no/such/file"},
        {"speed --pairs x --failed-requests 0,1", 2, "--failed-requests has 2 counts, but --pairs 1 files"},
        {"speed --pairs x --min-effect-pct -1", 2, "--min-effect-pct must lie"},
        {"bootstrap --pairs x --seed -1", 2, "--seed must be a whole number"}}) {
    for (const char* json : {"", " --json"}) {
      const Outcome got = run(fmt::format("stats {}{}", arguments, json));
      EXPECT_EQ(got.exit_code, exit_code) << arguments << ": " << got.err;
      EXPECT_THAT(got.err, HasSubstr(sentence)) << arguments;
      EXPECT_THAT(got.out, IsEmpty()) << arguments;
    }
  }
}

TEST(StatsCli, BadPairFilesAreRefusedByLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "at least 2 pairs, but the file has 0"},     {"1.0 1.0\n", "at least 2 pairs, but the file has 1"},
      {"1.0 1.0\n2.0\n", ":2: expected two numbers"},   {"1.0 1.0 1.0\n2.0 2.0\n", ":1: expected two numbers"},
      {"1.0 1.0\n\n2.0 x\n", ":3: the candidate loss"}, {"1.0 nan\n2.0 2.0\n", ":1: the candidate loss"},
      {"0 1.0\n2.0 2.0\n", ":1: the native loss"},      {"-1 1.0\n2.0 2.0\n", ":1: the native loss"},
      {"inf 1.0\n2.0 2.0\n", ":1: the native loss"},    {"1.0,1.0\n2.0 2.0\n", ":1: expected two numbers"}};
  for (const auto& [text, sentence] : cases) {
    const Outcome got = run(fmt::format("stats bootstrap --pairs '{}' --json", write_pairs("bad", text).string()));
    EXPECT_EQ(got.exit_code, 3) << text;
    EXPECT_THAT(got.err, HasSubstr(sentence)) << text;
    EXPECT_THAT(got.out, IsEmpty());
  }
  const auto good = write_pairs("good", "1.0 1.0\n2.0 2.1\n");
  const Outcome few = run(fmt::format("stats bootstrap --pairs '{}' --resamples 10", good.string()));
  EXPECT_EQ(few.exit_code, 2);
  EXPECT_THAT(few.err, HasSubstr("take at least 20"));
}

TEST(StatsCli, BadBlockFilesAreRefusedByLine) {
  for (const auto& [text, sentence] :
       {std::pair("", "the file has no block"), std::pair("1 2\n1\n", ":2: expected two"),
        std::pair("1 0\n", ":1: a rate must be a positive number, but it is '0'")}) {
    const Outcome got = run(fmt::format("stats speed --pairs '{}'", write_pairs("bad", text).string()));
    EXPECT_EQ(got.exit_code, 3) << text;
    EXPECT_THAT(got.err, HasSubstr(sentence)) << text;
  }
}

TEST(StatsCli, UnknownSubcommand) {
  EXPECT_EQ(run("stats").exit_code, 2);
  EXPECT_EQ(run("stats median --n 3").exit_code, 2);
}

}  // namespace
}  // namespace asymkv
