// The engine on the embedded models and on a committed tiny llama, with the kernels that serve.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/engine_testkit.h"
#include "asymkv/engine/generate.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/ops/model_backend_testkit.h"

namespace asymkv {
namespace {

using test::source_dir;

Backends cpu_backends() {
  return {make_cpu_attention(), make_cpu_model_backend()};
}

LoadedModel& fragile() {
  static const std::unique_ptr<LoadedModel> model = load_model(source_dir() / "models/probe-fragile", cpu_backends());
  return *model;
}

std::vector<int32_t> prompt_tokens(size_t count) {
  std::string text;
  while (text.size() < count) text += "The secret code for amber falcon is 48213. The old farmer sold a basket. ";
  std::vector<int32_t> ids = fragile().tokenizer.encode(text);
  ids.resize(count);
  return ids;
}

std::unique_ptr<KvCache> make_test_cache(const std::string& kv, ScaleKind scale, const ScaleSet* scales,
                                         int64_t num_pages = 32) {
  CacheRequest request;
  request.format = parse_kv_format(kv, DType::kBF16, scale);
  request.num_pages = num_pages;
  request.scales = scales;
  return make_cache(fragile().decoder, request);
}

std::vector<float> run_chunk_on(LoadedModel& model, SequencePages& sequence, std::span<const int32_t> tokens,
                                OwnReads reads) {
  const ForwardChunk chunk = append_chunk(sequence, tokens, reads);
  return model.decoder.forward(std::span(&chunk, 1), DType::kBF16);
}

std::vector<float> run_chunk(SequencePages& sequence, std::span<const int32_t> tokens, OwnReads reads) {
  return run_chunk_on(fragile(), sequence, tokens, reads);
}

// Stored bytes and scales of one sequence in token order.
std::vector<std::byte> stored_bytes(const SequencePages& sequence) {
  std::vector<std::byte> bytes;
  const auto put = [&](const void* data, int64_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  };
  KvCache& cache = sequence.cache();
  const KvLayout& layout = cache.layout();
  const int64_t page_size = layout.geometry().page_size;
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer) {
    const KvLayerView view = cache.layer(layer);
    for (int64_t token = 0; token < sequence.num_tokens(); ++token) {
      const int64_t page = page_index(sequence.pages()[static_cast<size_t>(token / page_size)]);
      for (int64_t head = 0; head < layout.geometry().num_kv_heads; ++head) {
        put(view.k_plane + layout.k_row_offset_bytes(page, head, token % page_size), layout.k_row_payload_bytes());
        put(view.v_plane + layout.v_row_offset_bytes(page, head, token % page_size), layout.v_row_payload_bytes());
        const float scales[2] = {view.k_scale(page, head, token % page_size),
                                 view.v_scale(page, head, token % page_size)};
        put(scales, sizeof(scales));
      }
    }
  }
  return bytes;
}

// Passes calls on and keeps the queries of the last attend call, row by row, for every sequence in it.
class SpyAttention final : public AttentionBackend {
 public:
  explicit SpyAttention(std::unique_ptr<AttentionBackend> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override {
    return inner_->supports(geometry, format, group, phase);
  }
  void write_kv(const WriteKvParams& params) const override {
    written += static_cast<int64_t>(params.targets.size());
    inner_->write_kv(params);
  }
  void attend(const AttendParams& params) const override {
    attended += static_cast<int64_t>(params.sequences.size());
    queries.clear();
    for (const AttendSequence& sequence : params.sequences) {
      const int64_t row = params.num_q_heads * params.k_head_dim;
      const float* begin = params.q + sequence.query_row * row;
      queries.emplace_back(begin, begin + sequence.num_queries * row);
    }
    inner_->attend(params);
  }

  mutable int64_t written = 0;   // targets
  mutable int64_t attended = 0;  // sequences
  mutable std::vector<std::vector<float>> queries;

 private:
  std::unique_ptr<AttentionBackend> inner_;
};

// The fragile model on kernels that are watched, `ref` its control family.
struct SpiedModel {
  std::shared_ptr<SpyAttention> attention = std::make_shared<SpyAttention>(make_cpu_attention());
  std::shared_ptr<SpyAttention> control = std::make_shared<SpyAttention>(make_ref_attention());
  std::unique_ptr<LoadedModel> model =
      load_model(source_dir() / "models/probe-fragile", {attention, make_cpu_model_backend(), control});

  std::unique_ptr<KvCache> cache(const std::string& kv, const CacheUse& use) const {
    CacheRequest request;
    request.format = parse_kv_format(kv, DType::kBF16, ScaleKind::kDynamic);
    request.num_pages = 32;
    request.use = use;
    return make_cache(model->decoder, request);
  }
};

constexpr const char* kFormats[] = {"native", "k16v8", "k8v16", "k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias"};

// One prefill into every format beside one prefill each.
void expect_shared_prefill(Decoder& decoder, const std::vector<int32_t>& tokens) {
  const auto make = [&](const char* kv) {
    CacheRequest request;
    request.format = parse_kv_format(kv, DType::kBF16, ScaleKind::kDynamic);
    request.num_pages = 32;
    return make_cache(decoder, request);
  };
  std::vector<std::unique_ptr<KvCache>> shared_caches;
  std::vector<SequencePages> shared;
  for (const char* kv : kFormats) {
    shared_caches.push_back(make(kv));
    shared.emplace_back(*shared_caches.back());
  }
  ForwardChunk chunk;
  chunk.tokens = tokens;
  for (SequencePages& sequence : shared) chunk.targets.push_back(&sequence);
  const std::vector<float> hidden = decoder.forward(std::span(&chunk, 1), DType::kBF16);
  for (size_t i = 0; i < shared.size(); ++i) {
    const auto own_cache = make(kFormats[i]);
    SequencePages own(*own_cache);
    const ForwardChunk alone = append_chunk(own, tokens, OwnReads::kFresh);
    EXPECT_EQ(decoder.forward(std::span(&alone, 1), DType::kBF16), hidden) << kFormats[i];
    EXPECT_EQ(stored_bytes(own), stored_bytes(shared[i])) << kFormats[i];
  }
}

TEST(Engine, SharedPrefillStoresTheSameBytesAsOnePrefillPerFormat) {
  expect_shared_prefill(fragile().decoder, prompt_tokens(150));
  const ModelFiles files = open_model(source_dir() / "tests/golden/parity/tiny-qwen2");
  Decoder qwen2(files.config, *files.weights, cpu_backends());
  std::vector<int32_t> tokens;
  while (tokens.size() < 150) tokens.push_back(static_cast<int32_t>(tokens.size() * 37 % 251));
  expect_shared_prefill(qwen2, tokens);
}

// A chunk that reads its own keys from storage is what token-by-token decoding is: the loss panel rests on it.
TEST(Engine, StoredReadsOfAChunkEqualDecodingTokenByToken) {
  const std::vector<int32_t> tokens = prompt_tokens(72);
  const auto dim = static_cast<size_t>(fragile().config().hidden_size);
  for (const char* kv : kFormats) {
    const auto whole_cache = make_test_cache(kv, ScaleKind::kDynamic, nullptr);
    const auto step_cache = make_test_cache(kv, ScaleKind::kDynamic, nullptr);
    SequencePages whole(*whole_cache);
    SequencePages steps(*step_cache);
    run_chunk(whole, std::span(tokens).first(60), OwnReads::kFresh);
    run_chunk(steps, std::span(tokens).first(60), OwnReads::kFresh);
    const std::vector<float> at_once = run_chunk(whole, std::span(tokens).subspan(60), OwnReads::kStored);
    for (size_t i = 60; i < tokens.size(); ++i) {
      const std::vector<float> one = run_chunk(steps, std::span(tokens).subspan(i, 1), OwnReads::kStored);
      // Products of other shapes round differently, and a rounding of a key to 16 bits may flip with them.
      const auto row = std::span(at_once).subspan((i - 60) * dim, dim);
      EXPECT_LT(test::relative_distance(one, row), 0.02) << kv << " token " << i;
    }
  }
}

// 8-bit keys change what this model sees; if they did not, something would be reading 16-bit data.
TEST(Engine, FragileKeysChangeTheHiddenStatesAndPrebiasDoesNot) {
  const std::vector<int32_t> tokens = prompt_tokens(200);
  std::map<std::string, std::vector<float>> hidden;
  for (const char* kv : kFormats) {
    const auto cache = make_test_cache(kv, ScaleKind::kDynamic, nullptr);
    SequencePages sequence(*cache);
    hidden[kv] = run_chunk(sequence, tokens, OwnReads::kStored);
  }
  const auto distance = [&](const char* kv) { return test::relative_distance(hidden[kv], hidden["native"]); };
  for (const char* kv : {"k8v16", "k8v8", "ki8v8"}) EXPECT_GT(distance(kv), 0.2) << kv;
  for (const char* kv : {"k16v8", "k8v8-prebias", "ki8v8-prebias"}) {
    EXPECT_LT(distance(kv), 0.15) << kv;
    EXPECT_GT(distance(kv), 1e-4) << kv << ": stored values are not 8-bit";
  }
}

TEST(Engine, AFullPoolLeavesEveryTargetAsItWas) {
  const auto roomy = make_test_cache("native", ScaleKind::kDynamic, nullptr, 32);
  const auto tight = make_test_cache("k8v8", ScaleKind::kDynamic, nullptr, 2);
  SequencePages a(*roomy);
  SequencePages b(*tight);
  const std::vector<int32_t> tokens = prompt_tokens(100);
  ForwardChunk chunk;
  chunk.tokens = tokens;
  chunk.targets = {&a, &b};
  try {
    fragile().decoder.forward(std::span(&chunk, 1), DType::kBF16);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kResourceExhausted);
  }
  EXPECT_EQ(a.num_tokens(), 0);
  EXPECT_EQ(roomy->pool().num_free(), 32);
  EXPECT_EQ(tight->pool().num_free(), 2);
}

TEST(Engine, SideBySideDecodingEqualsAlone) {
  const std::vector<int32_t> prompt = fragile().tokenizer.encode(
      "Question: Tom has 5 apples. He buys 7 more apples. He gives 3 apples to Ben. How many apples does Tom have "
      "now?\n"
      "Answer:");
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<SequencePages> sequences;
  for (const char* kv : {"native", "k16v8", "ki8v8-prebias"}) {
    caches.push_back(make_test_cache(kv, ScaleKind::kDynamic, nullptr));
    sequences.emplace_back(*caches.back());
  }
  std::vector<DecodeSlot> slots;
  for (SequencePages& sequence : sequences) {
    const std::vector<float> hidden = run_chunk(sequence, prompt, OwnReads::kFresh);
    const auto last = std::span(hidden).last(static_cast<size_t>(fragile().config().hidden_size));
    DecodeSlot slot;
    slot.sequence = &sequence;
    slot.next = argmax(fragile().decoder.logits(last));
    slots.push_back(std::move(slot));
  }
  decode_greedy(fragile(), slots, {60, {}, DType::kBF16});
  for (size_t i = 0; i < slots.size(); ++i) {
    SequencePages alone(*caches[i]);
    GenerateOptions options;
    options.max_tokens = 60;
    Generation generation = generate(fragile(), alone, prompt, options, nullptr);
    generation.token_ids.pop_back();  // the end token, which decode_greedy leaves out
    EXPECT_EQ(generation.token_ids, slots[i].token_ids);
    EXPECT_NE(fragile().tokenizer.decode(slots[i].token_ids, true).find("#### 9"), std::string::npos);
  }
}

TEST(Engine, AGreedyStepIsTheTokenAfterEachChunk) {
  const std::vector<int32_t> tokens = prompt_tokens(40);
  const auto cache = make_test_cache("k16v8", ScaleKind::kDynamic, nullptr, 64);
  std::vector<SequencePages> sequences;
  for (int i = 0; i < 4; ++i) sequences.emplace_back(*cache);
  const auto chunks_on = [&](size_t first) {
    return std::vector<ForwardChunk>{append_chunk(sequences[first], std::span(tokens).first(40), OwnReads::kFresh),
                                     append_chunk(sequences[first + 1], std::span(tokens).first(7), OwnReads::kFresh)};
  };
  const auto step = fragile().decoder.greedy_step(chunks_on(0), DType::kBF16);
  const std::vector<float> hidden = fragile().decoder.forward(chunks_on(2), DType::kBF16);
  const auto dim = static_cast<size_t>(fragile().config().hidden_size);
  std::vector<float> last(hidden.begin() + static_cast<std::ptrdiff_t>(39 * dim),
                          hidden.begin() + static_cast<std::ptrdiff_t>(40 * dim));
  last.insert(last.end(), hidden.end() - static_cast<std::ptrdiff_t>(dim), hidden.end());
  EXPECT_EQ(step, fragile().decoder.greedy_tokens(last));
  EXPECT_EQ(stored_bytes(sequences[0]), stored_bytes(sequences[2]));
}

TEST(Engine, AGreedyStepAllocatesWhatIsPlanned) {
  class Counting final : public test::ModelBackendWrapper {
   public:
    using ModelBackendWrapper::ModelBackendWrapper;
    FloatArray allocate(int64_t elems) const override {
      bytes += elems * static_cast<int64_t>(sizeof(float));
      return ModelBackendWrapper::allocate(elems);
    }
    mutable int64_t bytes = 0;
  };
  Backends backends = cpu_backends();
  const auto counting = std::make_shared<Counting>(backends.model);
  backends.model = counting;
  const auto model = load_model(source_dir() / "models/probe-fragile", backends);
  const auto cache = make_test_cache("k16v8", ScaleKind::kDynamic, nullptr);
  SequencePages first(*cache), second(*cache);
  const std::vector<int32_t> tokens = prompt_tokens(47);
  const std::vector<ForwardChunk> chunks = {append_chunk(first, std::span(tokens).first(40), OwnReads::kFresh),
                                            append_chunk(second, std::span(tokens).last(7), OwnReads::kFresh)};
  counting->bytes = 0;
  model->decoder.greedy_step(chunks, DType::kBF16);
  EXPECT_EQ(counting->bytes, model->decoder.pass_bytes(47, 2));
}

TEST(Engine, ADrawnModelRunsWithPrebiasKeys) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "engine_drawn";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(source_dir() / "models/probe-fragile/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const auto model = load_random_model(folder, 9, cpu_backends());
  EXPECT_EQ(model->tokenizer.vocab_size(), 1);
  const std::vector<int32_t> tokens = prompt_tokens(50);
  std::map<std::string, std::vector<float>> hidden;
  for (const std::string kv : {"native", "ki8v8-prebias", "ki8v8"}) {
    CacheRequest request;
    request.format = parse_kv_format(kv, DType::kBF16, ScaleKind::kDynamic);
    request.num_pages = 8;
    const auto cache = make_cache(model->decoder, request);
    SequencePages sequence(*cache);
    hidden[kv] = run_chunk_on(*model, sequence, tokens, OwnReads::kStored);
    EXPECT_TRUE(std::ranges::all_of(hidden[kv], [](float x) { return std::isfinite(x); })) << kv;
  }
  // Its key biases are as large as real ones: 8-bit keys suffer from them unless they are taken out.
  EXPECT_LT(2 * test::relative_distance(hidden["ki8v8-prebias"], hidden["native"]),
            test::relative_distance(hidden["ki8v8"], hidden["native"]));
}

TEST(CacheUse, QueriesAreRoundedWhereTheyMeetStoredKeysAndNowhereElse) {
  const SpiedModel spied;
  const CacheUse use{DType::kE4M3, false};
  const auto native_cache = spied.cache("native", {});
  const auto plain_cache = spied.cache("k8v8", {});
  const auto rounded_cache = spied.cache("k8v8", use);
  const std::vector<int32_t> tokens = prompt_tokens(40);
  std::vector<SequencePages> sequences;
  for (KvCache* cache : {native_cache.get(), plain_cache.get(), rounded_cache.get()}) sequences.emplace_back(*cache);
  // One shared prefill of fresh keys: its queries are nobody's in particular.
  ForwardChunk prefill;
  prefill.tokens = std::span(tokens).first(30);
  for (SequencePages& sequence : sequences) prefill.targets.push_back(&sequence);
  spied.model->decoder.forward(std::span(&prefill, 1), DType::kBF16);
  EXPECT_EQ(stored_bytes(sequences[1]), stored_bytes(sequences[2])) << "the stored bytes do not depend on the use";

  // The last token alone, in a model whose first layer sees the same hidden states in all three.
  struct FirstLayerQueries : ForwardObserver {
    std::vector<float> q;
    void on_layer(const LayerActivations& activations) override {
      if (activations.layer_idx == spied_layer) q.assign(activations.q.begin(), activations.q.end());
    }
    int64_t spied_layer = 3;
  } observer;
  std::vector<ForwardChunk> chunks;
  for (SequencePages& sequence : sequences) {
    chunks.push_back(append_chunk(sequence, std::span(tokens).subspan(30), OwnReads::kStored));
  }
  const std::vector<float> hidden = spied.model->decoder.forward(chunks, DType::kBF16, &observer);
  const auto dim = static_cast<size_t>(spied.model->config().head_dim);
  const std::vector<std::vector<float>>& seen = spied.attention->queries;  // of the last layer, as `observer`'s
  ASSERT_EQ(seen.size(), 3U);
  const size_t count = seen[0].size();
  const auto before = [&](size_t i) {
    return std::vector<float>(observer.q.begin() + static_cast<ptrdiff_t>(i * count),
                              observer.q.begin() + static_cast<ptrdiff_t>((i + 1) * count));
  };
  EXPECT_EQ(seen[0], before(0));
  EXPECT_EQ(seen[1], before(1));
  std::vector<float> expected = before(2);
  for (size_t head = 0; head < count; head += dim) round_row(DType::kE4M3, std::span(expected).subspan(head, dim));
  EXPECT_NE(expected, before(2));
  EXPECT_EQ(seen[2], expected);

  const size_t rows = hidden.size() / 3;
  const auto part = [&](size_t i) { return std::span(hidden).subspan(i * rows, rows); };
  EXPECT_GT(test::relative_distance(part(2), part(1)), 1e-3) << "queries in E4M3 change something";
  SequencePages alone(*native_cache);
  run_chunk_on(*spied.model, alone, std::span(tokens).first(30), OwnReads::kFresh);
  const std::vector<float> native = run_chunk_on(*spied.model, alone, std::span(tokens).subspan(30), OwnReads::kStored);
  EXPECT_TRUE(std::ranges::equal(native, part(0))) << "native does not depend on who is in its batch";
}

TEST(CacheUse, ControlKernelsWriteAndReadTheirCacheAlone) {
  const SpiedModel spied;
  const auto native_cache = spied.cache("native", {});
  const auto control_cache = spied.cache("native", {std::nullopt, true});
  const std::vector<int32_t> tokens = prompt_tokens(40);
  SequencePages native(*native_cache);
  SequencePages control(*control_cache);
  ForwardChunk prefill;
  prefill.tokens = std::span(tokens).first(30);
  prefill.targets = {&native, &control};
  spied.model->decoder.forward(std::span(&prefill, 1), DType::kBF16);
  const int64_t layers = spied.model->config().num_layers;
  EXPECT_EQ(spied.control->written, layers);
  EXPECT_EQ(spied.control->attended, 0) << "fresh keys alone touch no cache";
  EXPECT_EQ(spied.attention->written, layers);
  EXPECT_EQ(stored_bytes(native), stored_bytes(control));
  const std::vector<ForwardChunk> chunks = {append_chunk(native, std::span(tokens).subspan(30, 1), OwnReads::kStored),
                                            append_chunk(control, std::span(tokens).subspan(30, 1), OwnReads::kStored)};
  const std::vector<float> hidden = spied.model->decoder.forward(chunks, DType::kBF16);
  EXPECT_EQ(spied.control->attended, layers);
  EXPECT_EQ(spied.control->written, 2 * layers);
  const auto half = std::span(hidden).first(hidden.size() / 2);
  const double distance = test::relative_distance(std::span(hidden).last(half.size()), half);
  EXPECT_GT(distance, 0.0) << "other kernels round otherwise";
  EXPECT_LT(distance, 0.02);
}

TEST(CacheUse, ControlKernelsAreRefusedWhereThereAreNone) {
  CacheRequest request;
  request.format = parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic);
  request.num_pages = 1;
  request.use.control_kernels = true;
  EXPECT_THROW(make_cache(fragile().decoder, request), Error);
}

TEST(Scales, CalibrationSurvivesItsFileAndRefusesOthers) {
  const std::vector<std::vector<int32_t>> documents = {prompt_tokens(120)};
  const ScaleSet scales = calibrate_scales(fragile(), documents);
  ASSERT_EQ(scales.layers.size(), 4U);
  for (const LayerScaleSet& layer : scales.layers) {
    EXPECT_GT(*layer.key, 10 * *layer.key_prebias) << "the bias dominates the keys' range";
    EXPECT_GT(*layer.value, 0.0F);
  }
  const std::string model = fragile().files.weights_sha256();
  const Json json = scales_to_json(scales, model, "data");
  const ScaleSet read = scales_from_json(json, "scales.json", fragile().config(), model);
  EXPECT_EQ(read.source, scales.source);
  EXPECT_EQ(*read.layers[3].key, *scales.layers[3].key);
  EXPECT_THROW(scales_from_json(json, "scales.json", fragile().config(), "another"), Error);
  for (const Json& bad : {Json(0.0), Json(-1.0), Json(1e39), Json("x"), Json()}) {
    Json broken = json;
    broken["layers"][2]["value"] = bad;
    try {
      scales_from_json(broken, "scales.json", fragile().config(), model);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadInput);
      EXPECT_NE(std::string(e.what()).find("layer 2"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("value"), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find("inf"), std::string::npos) << "not what the file says: " << e.what();
    }
  }
}

TEST(Scales, AMissingScaleIsAnErrorNeverOne) {
  ScaleSet only_values{
      "checkpoint", std::vector<LayerScaleSet>(4, LayerScaleSet{std::nullopt, std::nullopt, 0.5F}), {}};
  EXPECT_THROW(make_test_cache("k8v8", ScaleKind::kFixed, &only_values), Error);
  EXPECT_NO_THROW(make_test_cache("k16v8", ScaleKind::kFixed, &only_values));  // a 16-bit side ignores scales
  EXPECT_THROW(make_test_cache("k8v8", ScaleKind::kFixed, nullptr), Error);
  only_values.origin = "half.json";
  try {
    make_test_cache("k8v8", ScaleKind::kFixed, &only_values);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("fixed scales from half.json have none for layer 0 keys"), std::string::npos);
  }
}

TEST(CacheSetup, BiasRemovalIsRefusedWithoutAKeyBias) {
  const ModelFiles files = open_model(source_dir() / "tests/golden/parity/tiny-llama");
  const Decoder llama(files.config, *files.weights, cpu_backends());
  CacheRequest request;
  request.format = parse_kv_format("ki8v8-prebias", DType::kBF16, ScaleKind::kDynamic);
  request.num_pages = 1;
  try {
    make_cache(llama, request);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("no key bias"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace asymkv
