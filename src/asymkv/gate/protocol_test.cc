#include "asymkv/gate/protocol.h"

#include "asymkv/base/hash.h"
#include "asymkv/gate/test_support.h"
#include "asymkv/stats/required_cases.h"

namespace asymkv {
namespace {

using test::expect_error;

TEST(Arm, NamesRoundTripAndFormatsAreThoseOfTheLetters) {
  const std::vector<std::pair<std::string, std::string>> expected = {
      {"N", "bf16/bf16"},       {"NR", "bf16/bf16"},         {"AF", "bf16/e4m3"},         {"AD", "bf16/e4m3"},
      {"RF", "e4m3/bf16"},      {"RD", "e4m3/bf16"},         {"SF", "e4m3/e4m3"},         {"SD", "e4m3/e4m3"},
      {"QD", "e4m3/e4m3"},      {"PF", "e4m3-prebias/e4m3"}, {"PD", "e4m3-prebias/e4m3"}, {"ID", "i8/e4m3"},
      {"JD", "i8-prebias/e4m3"}};
  ASSERT_EQ(all_arms().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const ArmId arm = all_arms()[i];
    EXPECT_EQ(arm_name(arm), expected[i].first);
    EXPECT_EQ(parse_arm(expected[i].first), arm);
    const KvFormat format = arm_format(arm, DType::kBF16);
    EXPECT_EQ(format.id(), expected[i].second);
    const ScaleKind scale = expected[i].first[0] == 'N'       ? ScaleKind::kNone
                            : expected[i].first.back() == 'F' ? ScaleKind::kFixed
                                                              : ScaleKind::kDynamic;
    EXPECT_EQ(format.scale(), scale) << expected[i].first;
    EXPECT_EQ(arm_needs_fixed_scales(arm), scale == ScaleKind::kFixed);
    EXPECT_EQ(arm_needs_key_bias(arm), format.key.prebias);
    EXPECT_EQ(arm_query(arm), expected[i].first == "QD" ? "e4m3" : "native");
    EXPECT_EQ(arm_uses_control_kernels(arm), expected[i].first == "NR");
    EXPECT_EQ(arm_is_control(arm), expected[i].first[0] == 'N' || expected[i].first[0] == 'Q');
  }
  EXPECT_EQ(arm_format(ArmId::kN2, DType::kF16).id(), "f16/f16");
  EXPECT_EQ(arm_format(ArmId::kAD, DType::kF32).id(), "f32/e4m3");
}

TEST(Arm, EqualBytesPartnersExchangeTheSides) {
  for (const ArmId arm : all_arms()) {
    const auto other = equal_bytes_arm(arm);
    EXPECT_EQ(other.has_value(), arm_name(arm)[0] == 'A' || arm_name(arm)[0] == 'R');
    if (!other) continue;
    const KvFormat a = arm_format(arm, DType::kBF16), b = arm_format(*other, DType::kBF16);
    EXPECT_EQ(a.key.dtype, b.value.dtype);
    EXPECT_EQ(a.value.dtype, b.key.dtype);
    EXPECT_EQ(a.scale(), b.scale());
    EXPECT_EQ(equal_bytes_arm(*other), arm);
  }
}

TEST(Arm, ListsAreSortedAndRefuseNonsense) {
  EXPECT_EQ(join_arms(parse_arms("SD,N,AD")), "N,AD,SD");
  EXPECT_EQ(join_arms(parse_arms("N")), "N");
  EXPECT_EQ(join_arms(parse_arms("QD,SD,NR,N")), "N,NR,SD,QD");
  expect_error([] { parse_arms("AD,SD"); }, ErrorCode::kUsage, "lack N");
  expect_error([] { parse_arms("N,AD,AD"); }, ErrorCode::kUsage, "AD is named twice");
  expect_error([] { parse_arms("N,XD"); }, ErrorCode::kUsage, "unknown arm \"XD\"");
  expect_error([] { parse_arms("N,IF"); }, ErrorCode::kUsage, "unknown arm \"IF\"");
  expect_error([] { parse_arms("N,,AD"); }, ErrorCode::kUsage, "unknown arm \"\"");
  expect_error([] { parse_arms(""); }, ErrorCode::kUsage, "unknown arm \"\"");
  expect_error([] { parse_arms("N,N2"); }, ErrorCode::kUsage, "N2 is added by the gate");
}

TEST(Protocol, BuiltInsAreValidAttainableAndRoundTrip) {
  const std::vector<std::string> data = {std::string(64, 'd')};
  for (const std::string& name : builtin_protocol_names()) {
    Protocol protocol = load_protocol(name);
    // As resolve_data leaves it once the files are known.
    if (protocol.math->source == DataSource::kFile) protocol.math->data_sha256 = data;
    for (LossPanel& panel : protocol.loss) {
      if (panel.source == DataSource::kFile) panel.data_sha256 = data;
    }
    require_attainable(protocol, name);
    const std::string text = canonical_json(protocol_to_json(protocol));
    const Protocol again = protocol_from_json(parse_json(text, name), name);
    EXPECT_EQ(canonical_json(protocol_to_json(again)), text);
    EXPECT_EQ(protocol_sha256(again), sha256_hex(text));
  }
}

// The counts that docs/decisions/0003-builtin-protocol.md derives.
TEST(Protocol, BuiltinCountsAreWhatAPerfectCandidateNeeds) {
  const Protocol p = builtin_protocol("builtin");
  const double alpha = p.alpha_per_bound();
  EXPECT_EQ(p.protocol_class, ProtocolClass::kCertifying);
  EXPECT_GE(p.divisor, std::ssize(p.default_arms) - 1);
  EXPECT_EQ(std::ranges::count_if(p.default_arms, arm_is_control), 1) << "N alone: other controls are asked for";
  EXPECT_EQ(stats::most_losses_for_limit(p.math->count, p.margins.preservation_limit, alpha), 0);
  for (const RetrievalPanel& panel : p.retrieval) {
    EXPECT_EQ(stats::most_losses_for_limit(panel.count, panel.limit, alpha), 0) << panel.name();
    EXPECT_EQ(panel.count % panel.cases_per_unit, 0);
  }
}

TEST(Protocol, HashChangesWithEveryField) {
  const Protocol p = builtin_protocol("builtin");
  const std::string before = protocol_sha256(p);
  const auto differs = [&](const std::function<void(Protocol&)>& change) {
    Protocol other = p;
    change(other);
    return protocol_sha256(other) != before;
  };
  EXPECT_TRUE(differs([](Protocol& x) { x.seed += 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.divisor += 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.margins.loss_limit = 0.02; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.retrieval[1].cases_per_unit = 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.math->generation.stops.emplace_back("x"); }));
  EXPECT_TRUE(differs([](Protocol& x) { x.loss[0].scored_tokens -= 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.path = RunPath::kReference; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.chunk_tokens = 9000; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.default_arms.pop_back(); }));
  EXPECT_TRUE(differs([](Protocol& x) { x.pool_limit_bytes = 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.process_limit_bytes = 1; }));
  EXPECT_TRUE(differs([](Protocol& x) { x.device_limit_bytes = 1; }));
}

struct Broken {
  const char* pointer;  // JSON pointer of the value that is replaced; a leading '-' removes it, '+' adds it
  Json value;
  const char* words;
};

TEST(Protocol, BrokenFilesNameTheField) {
  const std::vector<Broken> cases = {
      {"-/name", {}, "field \"name\" is missing"},
      {"/name", 7, "field \"name\" must be a string, found number"},
      {"/name", "", "field \"name\" is empty"},
      {"/schema", "asymkv.protocol/2", "field \"schema\" must be \"asymkv.protocol/1\""},
      {"/class", "certified", "field \"class\" is \"certified\"; known: certifying screening"},
      {"/objective", "both", "field \"objective\" is \"both\"; known: preservation aggregate"},
      {"+/retries", 3, "unknown field \"retries\""},
      {"+/panels/math/shots", 3, "unknown field \"panels.math.shots\""},
      {"/margins", 3, "field \"margins\" must be an object, found number"},
      {"/margins/preservation_limit", 0, "field \"margins.preservation_limit\" must lie between 0 and 1"},
      {"/margins/preservation_limit", 1.5, "but it is 1.5"},
      {"/margins/aggregate_margin", 0.01, "field \"margins.aggregate_margin\" must lie between -1 and 0"},
      {"/margins/loss_limit", nullptr, "field \"margins.loss_limit\" must be a number, found null"},
      {"/alpha", 0.5, "field \"alpha\" must lie between 0 and 0.5"},
      {"/divisor", 0, "field \"divisor\" must lie between 1 and 1000000, but it is 0"},
      {"/divisor", 1.5, "field \"divisor\" must be an integer, found 1.5"},
      {"/seed", -1, "field \"seed\" is negative"},
      {"/seed", 18446744073709551615ULL, "field \"seed\" is 18446744073709551615, above"},
      {"/bootstrap/resamples", 10, "field \"bootstrap.resamples\" must lie between 1000"},
      {"/path", "fast", "field \"path\" is \"fast\"; known: worker reference"},
      {"/path", "reference", "field \"prefill\" must be \"per-arm\" on the reference path"},
      {"/prefill", "lazy", "field \"prefill\" is \"lazy\"; known: shared per-arm"},
      {"/chunk_tokens", 2048, "retrieval-8192 does not fit into one chunk of 2048 tokens"},
      {"+/pool_limit_bytes", -1, "field \"pool_limit_bytes\" must lie between 0 and"},
      {"+/process_limit_bytes", -1, "field \"process_limit_bytes\" must lie between 0 and"},
      {"+/device_limit_bytes", -1, "field \"device_limit_bytes\" must lie between 0 and"},
      {"+/pool_limit_bytes", "1GiB", "field \"pool_limit_bytes\" must be an integer, found \"1GiB\""},
      {"/noise_floor", 1, "field \"noise_floor\" must be true or false, found number"},
      {"/default_arms", Json::array(), "field \"default_arms\" must begin with N"},
      {"/default_arms", {"AD", "N"}, "field \"default_arms\" must begin with N"},
      {"/default_arms", {"N", "AD", "AD"}, "field \"default_arms\" names an arm twice"},
      {"/default_arms", {"N", "N2"}, "field \"default_arms\" must not name N2"},
      {"/default_arms", {"N", "ZZ"}, "field \"default_arms\" is wrong: unknown arm \"ZZ\""},
      {"/panels/retrieval", 1, "field \"panels.retrieval\" must be a list of objects, found number"},
      {"/panels/retrieval/0", 1, "field \"panels.retrieval[0]\" must be an object, found number"},
      {"/panels/retrieval/0/count", 0, "field \"panels.retrieval[0].count\" must lie between 1"},
      {"/panels/retrieval/0/count", "many", "field \"panels.retrieval[0].count\" must be an integer, found \"many\""},
      {"/panels/retrieval/0/length", 8192, "field \"panels.retrieval[1].length\" must be larger than"},
      {"/panels/retrieval/0/length", 1 << 30, "field \"panels.retrieval[0].length\" must lie between"},
      {"/panels/retrieval/0/depths", 1000, "field \"panels.retrieval[0].depths\" must lie between"},
      {"/panels/retrieval/0/distractors", 60, "field \"panels.retrieval[0].distractors\" does not fit"},
      {"/panels/retrieval/0/digits", 7, "field \"panels.retrieval[0].digits\" must be 5"},
      {"/panels/retrieval/0/limit", 1.0, "field \"panels.retrieval[0].limit\" must lie between"},
      {"/panels/retrieval/0/native_floor", 1.01, "field \"panels.retrieval[0].native_floor\" must lie between"},
      {"/panels/retrieval/0/source", "web", "field \"panels.retrieval[0].source\" is \"web\""},
      {"/panels/retrieval/0/data_sha256", {"ab"}, "field \"panels.retrieval[0].data_sha256\" is for panels"},
      {"/panels/retrieval/0/generation/token_limit", 3, "field \"panels.retrieval[0].generation.token_limit\" is too"},
      {"/panels/retrieval/0/generation/stops", {""}, "field \"panels.retrieval[0].generation.stops\" holds an empty"},
      {"/panels/retrieval/0/generation/stops", {1}, "must hold strings only, found number"},
      {"/panels/retrieval/0/cases_per_unit", 0, "field \"panels.retrieval[0].cases_per_unit\" must lie between"},
      {"/panels/math/source", "generic", "field \"panels.math.source\" must be \"builtin\" or \"file\""},
      {"/panels/math/few_shot", 4, "field \"panels.math.few_shot\" must be 0 for the builtin problems"},
      {"/panels/math/parser", "loose", "field \"panels.math.parser\" is \"loose\"; known: strict flexible"},
      {"/panels/loss/0/documents", 1, "field \"panels.loss[0].documents\" must lie between 2"},
      {"/panels/loss/0/scored_tokens", 1024, "field \"panels.loss[0].scored_tokens\" must lie between 1 and 1023"},
      {"/panels/loss/0/source", "file", ""},  // valid: the hash may still come
  };
  for (const Broken& broken : cases) {
    Json json = protocol_to_json(builtin_protocol("builtin"));
    std::string pointer = broken.pointer;
    const char mode = pointer[0];
    if (mode != '/') pointer.erase(0, 1);
    if (mode == '-') {
      json.erase(pointer.substr(1));
    } else {
      json[Json::json_pointer(pointer)] = broken.value;
    }
    SCOPED_TRACE(broken.pointer);
    if (*broken.words == 0) {
      EXPECT_NO_THROW(protocol_from_json(json, "p.json"));
    } else {
      expect_error([&] { protocol_from_json(json, "p.json"); }, ErrorCode::kBadInput, broken.words);
      expect_error([&] { protocol_from_json(json, "p.json"); }, ErrorCode::kBadInput, "p.json");
    }
  }
  expect_error([] { protocol_from_json(Json::array(), "p.json"); }, ErrorCode::kBadInput,
               "p.json must be a JSON object, found array");
}

TEST(Protocol, NoPanelsIsRefused) {
  Protocol p = builtin_protocol("builtin");
  p.retrieval.clear();
  p.math.reset();
  p.loss.clear();
  expect_error([&] { validate_protocol(p, "p"); }, ErrorCode::kBadInput, "\"panels\" holds no panel");
}

TEST(Protocol, CertifyingNeedsEnoughCasesForAPerfectCandidate) {
  const Protocol good = builtin_protocol("builtin");
  const double alpha = good.alpha_per_bound();
  Protocol p = good;
  const int64_t needed = stats::cases_for_limit(p.margins.preservation_limit, alpha);
  p.math->count = needed;
  EXPECT_NO_THROW(require_attainable(p, "p"));
  p.math->count = needed - 1;
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput,
               fmt::format("panel math cannot pass even a perfect candidate: with {} cases and no loss the upper bound "
                           "of lost answers misses its limit; it needs at least {} cases",
                           needed - 1, needed));
  p.protocol_class = ProtocolClass::kScreening;
  EXPECT_NO_THROW(require_attainable(p, "p"));

  p = good;
  p.objective = Objective::kAggregate;
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput,
               fmt::format("it needs at least {} cases", stats::cases_for_margin(p.margins.aggregate_margin, alpha)));

  p = good;
  p.retrieval[1].count = stats::cases_for_limit(p.retrieval[1].limit, alpha) - 1;
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput, "panel retrieval-8192 cannot pass");
  p = good;
  p.loss.clear();
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput, "\"panels.loss\" is empty");
  p = good;
  p.math.reset();
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput, "\"panels.math\" is missing");
  p = good;
  p.loss[0].source = DataSource::kFile;
  expect_error([&] { require_attainable(p, "p"); }, ErrorCode::kBadInput,
               "\"panels.loss[0].data_sha256\" must name the SHA-256");
}

TEST(Protocol, LoadsByNameOrPath) {
  const test::TempFolder folder;
  const auto path = folder.write("mine.json", canonical_json(protocol_to_json(builtin_protocol("quick"))));
  EXPECT_EQ(protocol_sha256(load_protocol(path.string())), protocol_sha256(builtin_protocol("quick")));
  expect_error([] { load_protocol("slow"); }, ErrorCode::kUsage, "unknown protocol \"slow\"; known: builtin quick");
  expect_error([] { load_protocol("/nonexistent/p.json"); }, ErrorCode::kBadInput, "/nonexistent/p.json");
  const auto torn = folder.write("torn.json", "{\"name\": ");
  expect_error([&] { load_protocol(torn.string()); }, ErrorCode::kBadInput, "torn.json is not valid JSON");
}

}  // namespace
}  // namespace asymkv
