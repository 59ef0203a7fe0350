#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/engine_testkit.h"
#include "asymkv/engine/loaded_model.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/ops/model_backend_testkit.h"

// Decode steps that are recorded and replayed, on the CPU: a model backend whose recordings are the calls themselves,
// and an attention family that, as a device family does, reads tokens and sequences from its plan of the pass.
namespace asymkv {
namespace {

class RecordingModel final : public test::ModelBackendWrapper {
 public:
  using ModelBackendWrapper::ModelBackendWrapper;
  bool records() const override { return true; }
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) const override {
    struct Calls final : RecordedWork {
      std::function<void()> work;
      int64_t* replays = nullptr;
      void replay() const override {
        ++*replays;
        work();
      }
      int64_t bytes() const override { return 1000; }
    };
    if (fails-- > 0) throw_error(ErrorCode::kResourceExhausted, "no memory for a recording");
    auto calls = std::make_unique<Calls>();
    calls->work = work;
    calls->replays = &replays;
    ++recordings;
    return calls;
  }
  mutable int64_t recordings = 0, replays = 0;
  mutable int64_t fails = 0;  // recordings that find no memory
};

class PlanningAttention final : public AttentionBackend {
 public:
  std::string_view name() const override { return inner_->name(); }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override {
    return inner_->supports(geometry, format, group, phase);
  }
  void keep_pass(uint64_t pass) const override { kept_[pass]; }
  void forget_pass(uint64_t pass) const override { kept_.erase(pass); }
  bool replan(const WriteKvParams& params) const override {
    Plan& plan = kept_.at(params.pass);
    plan.slots.clear();
    for (const WriteTarget& target : params.targets) plan.slots.emplace_back(target.slots.begin(), target.slots.end());
    return true;
  }
  bool replan(const AttendParams& params) const override {
    Plan& plan = kept_.at(params.pass);
    if (params.sequences.front().stored_len > longest) return false;
    if (plan.rows != 0 && plan.rows != params.sequences.size()) return false;
    plan.sequences.assign(params.sequences.begin(), params.sequences.end());
    return true;
  }
  void replayed(const WriteKvParams& params, int64_t layers) const override {
    writes += layers * static_cast<int64_t>(params.targets.size());
  }
  void write_kv(const WriteKvParams& params) const override {
    WriteKvParams call = params;
    std::vector<WriteTarget> targets(params.targets.begin(), params.targets.end());
    if (const auto kept = kept_.find(params.pass); kept != kept_.end() && !kept->second.slots.empty()) {
      for (size_t i = 0; i < targets.size(); ++i) targets[i].slots = kept->second.slots[i];
    }
    call.targets = targets;
    inner_->write_kv(call);
  }
  // Padding reads nothing.
  void attend(const AttendParams& params) const override {
    if (--calls_until_failure == 0) throw_error(ErrorCode::kResourceExhausted, "no memory");
    std::vector<AttendSequence> sequences(params.sequences.begin(), params.sequences.end());
    if (const auto kept = kept_.find(params.pass); kept != kept_.end()) {
      kept->second.rows = sequences.size();
      for (size_t i = 0; i < kept->second.sequences.size(); ++i) {
        const KvLayerView view = sequences[i].cache;
        sequences[i] = kept->second.sequences[i];
        sequences[i].cache = view;
      }
    }
    AttendParams call = params;
    call.sequences = sequences;
    inner_->attend(call);
  }
  size_t kept() const { return kept_.size(); }
  int64_t longest = 1000;
  mutable int64_t calls_until_failure = 0;  // of attend; not positive: none fails
  mutable int64_t writes = 0;

 private:
  struct Plan {
    std::vector<std::vector<int64_t>> slots;
    std::vector<AttendSequence> sequences;
    size_t rows = 0;
  };
  std::unique_ptr<AttentionBackend> inner_ = make_cpu_attention();
  mutable std::map<uint64_t, Plan> kept_;
};

struct Recorded {
  std::shared_ptr<RecordingModel> math = std::make_shared<RecordingModel>(make_cpu_model_backend());
  std::shared_ptr<PlanningAttention> attention = std::make_shared<PlanningAttention>();
  std::unique_ptr<LoadedModel> model;
  explicit Recorded(bool records) {
    model = load_model(test::source_dir() / "models/probe-fragile",
                       records ? Backends{attention, math} : Backends{make_cpu_attention(), make_cpu_model_backend()});
  }
};

std::unique_ptr<KvCache> make(const LoadedModel& model, const char* kv) {
  CacheRequest request;
  request.format = parse_kv_format(kv, DType::kBF16, ScaleKind::kDynamic);
  request.num_pages = 64;
  return make_cache(model.decoder, request);
}

// Greedy tokens of sequences in two caches, of which one ends every third step; with how many rows are left.
std::vector<std::vector<int32_t>> decode(LoadedModel& model, int64_t steps) {
  const auto native = make(model, "native"), narrow = make(model, "k8v8");
  std::vector<SequencePages> sequences;
  std::vector<std::vector<int32_t>> tokens;
  for (int i = 0; i < 7; ++i) {
    SequencePages& sequence = sequences.emplace_back(i < 4 ? *native : *narrow);
    std::vector<int32_t> prompt;
    for (int t = 0; t < 20 + 3 * i; ++t) prompt.push_back(1 + (t * 37 + i * 11) % 90);
    const ForwardChunk chunk = append_chunk(sequence, prompt, OwnReads::kFresh);
    tokens.push_back({model.decoder.greedy_step(std::span(&chunk, 1), DType::kBF16).front().value()});
  }
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<ForwardChunk> chunks;
    const auto first = static_cast<size_t>(std::min<int64_t>(step / 3, 5));
    for (size_t i = first; i < sequences.size(); ++i) {
      chunks.push_back(append_chunk(sequences[i], std::span(tokens[i]).last(1), OwnReads::kStored));
    }
    const std::vector<std::optional<int32_t>> chosen = [&] {
      try {
        return model.decoder.greedy_step(chunks, DType::kBF16);
      } catch (const Error& e) {  // as if that step had never been asked for
        EXPECT_EQ(e.code(), ErrorCode::kResourceExhausted);
      }
      for (const ForwardChunk& chunk : chunks) chunk.targets.front()->truncate(chunk.start_pos);
      return model.decoder.greedy_step(chunks, DType::kBF16);
    }();
    for (size_t c = 0; c < chosen.size(); ++c) tokens[first + c].push_back(chosen[c].value());
  }
  for (std::vector<int32_t>& row : tokens) row.push_back(static_cast<int32_t>(native->k_counters(0).elems));
  return tokens;
}

TEST(RecordedSteps, GiveTheSameTokensWithPaddingInPlaceOfWhatEnded) {
  Recorded plain(false), recorded(true);
  EXPECT_EQ(decode(*recorded.model, 24), decode(*plain.model, 24));
  // Four and three rows of two caches, then three: padded alike; two of the narrow cache alone later.
  EXPECT_GE(recorded.math->recordings, 2);
  EXPECT_LE(recorded.math->recordings, 4);
  EXPECT_GE(recorded.math->replays, 12);
  // Each has arrays too: x alone has a row of hidden states.
  EXPECT_GE(recorded.model->decoder.step_bytes(),
            recorded.math->recordings * (1000 + 4 * recorded.model->config().hidden_size));
  EXPECT_EQ(plain.model->decoder.step_bytes(), 0);
}

TEST(RecordedSteps, AStepThatDoesNotServeABatchStartsAnew) {
  Recorded plain(false), recorded(true);
  recorded.attention->longest = 30;
  EXPECT_EQ(decode(*recorded.model, 24), decode(*plain.model, 24));
  EXPECT_GE(recorded.math->recordings, 1);
}

TEST(RecordedSteps, AreCalledWhereThereIsNoMemoryForARecording) {
  Recorded plain(false), recorded(true);
  recorded.math->fails = 2;
  EXPECT_EQ(decode(*recorded.model, 24), decode(*plain.model, 24));
  EXPECT_GE(recorded.math->recordings, 1);
}

// Calls 29 to 60 lie in a first run, in one that is recorded, and in replays.
TEST(RecordedSteps, GoOnAfterAStepThatFailedHalfWay) {
  Recorded plain(false);
  const auto expected = decode(*plain.model, 24);
  for (const int64_t call : {29, 30, 34, 38, 45, 60}) {
    Recorded recorded(true);
    recorded.attention->calls_until_failure = call;
    auto tokens = decode(*recorded.model, 24);
    EXPECT_LT(recorded.attention->calls_until_failure, 1) << call;
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i].back() = expected[i].back();  // elements: what was written twice
    EXPECT_EQ(tokens, expected) << call;
  }
}

TEST(RecordedSteps, KeepNoMorePlansThanStepsAndForgetThemWithTheModel) {
  Recorded recorded(true);
  for (int i = 0; i < 40; ++i) decode(*recorded.model, 3);  // new caches each time
  EXPECT_LE(recorded.attention->kept(), 24U);
  EXPECT_GT(recorded.attention->kept(), 0U);
  recorded.model.reset();
  EXPECT_EQ(recorded.attention->kept(), 0U);
}

}  // namespace
}  // namespace asymkv
