#include "asymkv/record/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "asymkv/base/file.h"
#include "asymkv/record/record_testkit.h"
#include "asymkv/record/schema_testkit.h"

namespace asymkv {
namespace {

using test::expect_error;
using test::test_file;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<ImportedRecord> import_file(std::string_view source, const std::string& file) {
  return import_records(source, read_text_file(test_file(file)), file);
}

// "requested, decided by" of one side; "unset" where no field says.
std::string side(const std::optional<std::string>& requested, const std::string& decided_by) {
  return requested ? fmt::format("{} by {}", *requested, decided_by) : "unset" + decided_by;
}

struct Expected {
  std::string_view source;
  std::string file;
  std::string engine, model;
  std::string key, value;  // of the first record
  size_t records = 1;
};

TEST(Import, EverySourceFillsRequestedAndNothingElse) {
  const std::string args = "kv_cache_dtype of the arguments", config = "kv_cache_dtype of the engine's config";
  const std::string label = "label cache_dtype of ";
  const std::vector<Expected> all = {
      {"vllm-log", "vllm-log-auto.txt", "vllm", "Qwen/Qwen2.5-7B-Instruct", "auto by line 4: " + config, "", 1},
      {"vllm-log", "vllm-log-fp8.txt", "vllm", "Llama-3.1-8B-Instruct", "fp8_e4m3 by line 2: " + args, "", 1},
      {"vllm-metrics", "vllm-metrics.txt", "vllm", "Qwen/Qwen2.5-7B-Instruct",
       "auto by " + label + "vllm:cache_config_info", "", 2},
      {"vllm-bench", "vllm-serve.json", "unknown", "Qwen/Qwen2.5-7B-Instruct",
       "fp8 by kv_cache_dtype, given as metadata", "", 1},
      {"vllm-bench", "vllm-throughput.json", "vllm", "", "unset", "", 1},
      {"vllm-bench", "vllm-pytorch.json", "vllm", "Qwen/Qwen2.5-7B-Instruct",
       "auto by benchmark.extra_info.args.kv_cache_dtype", "", 2},
      {"sglang-log", "sglang-log.txt", "sglang", "Qwen/Qwen2.5-7B-Instruct",
       "auto by line 2: kv_cache_dtype of ServerArgs", "", 1},
      {"sglang-info", "sglang-info.json", "sglang", "meta-llama/Llama-3.1-8B-Instruct", "fp8_e4m3 by kv_cache_dtype",
       "", 1},
      {"sglang-bench", "sglang-bench.jsonl", "sglang", "Qwen/Qwen2.5-7B-Instruct",
       "fp8_e5m2 by server_info.kv_cache_dtype", "", 2},
      {"llama-bench", "llama-bench.json", "llama.cpp", "SmolLM2-135M-Instruct.Q4_1.gguf", "f16 by type_k",
       "q8_0 by type_v", 2},
      {"llama-bench", "llama-bench.jsonl", "llama.cpp", "SmolLM2-135M-Instruct.Q4_1.gguf", "q8_0 by type_k",
       "f16 by type_v", 2},
      {"llama-log", "llama-log.txt", "llama.cpp", "SmolLM2-135M-Instruct.Q4_1.gguf", "unset", "", 1},
      {"llama-log", "llama-log-quiet.txt", "llama.cpp", "SmolLM2-135M-Instruct.Q4_1.gguf", "unset", "", 1},
      {"llama-log", "llama-log-windows.txt", "llama.cpp", "gemma-3-270m-q4_k_m.gguf", "unset", "", 1},
      {"llama-props", "llama-props.json", "llama.cpp", "SmolLM2-135M-Instruct.Q4_1.gguf", "unset", "", 1},
      {"aiconfigurator", "aiconfigurator-agg.csv", "trtllm", "Qwen/Qwen3-32B", "fp8 by column kvcache", "", 2},
      {"aiconfigurator", "aiconfigurator-disagg.csv", "sglang", "Qwen/Qwen3-32B", "bfloat16 by column (p)kvcache", "",
       2},
      {"inferencex", "inferencex.json", "vllm", "openai/gpt-oss-120b", "unset", "", 2},
      {"aiperf", "aiperf.json", "unknown", "Qwen/Qwen3-0.6B", "unset", "", 1},
      {"aiperf", "aiperf-native.json", "unknown", "Qwen/Qwen3-0.6B", "unset", "", 1},
      {"aiperf", "aiperf-server-metrics.json", "vllm", "", "fp8 by " + label + "metrics.vllm:cache_config_info", "", 1},
      {"guidellm", "guidellm.json", "unknown", "Qwen/Qwen2.5-7B-Instruct", "unset", "", 2}};
  std::set<std::string_view> seen;
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.file);
    seen.insert(expected.source);
    const std::vector<ImportedRecord> records = import_file(expected.source, expected.file);
    ASSERT_EQ(records.size(), expected.records);
    const ImportedRecord& first = records[0];
    EXPECT_EQ(first.record.engine, expected.engine);
    EXPECT_EQ(first.record.imported_from, expected.source);
    EXPECT_EQ(first.record.model.id, expected.model);
    EXPECT_EQ(side(first.record.key.requested, first.key_decided_by), expected.key);
    EXPECT_EQ(side(first.record.value.requested, first.value_decided_by),
              expected.value.empty() ? expected.key : expected.value);
    for (const ImportedRecord& imported : records) {
      for (const SideFacts* facts : {&imported.record.key, &imported.record.value}) {
        EXPECT_FALSE(facts->resolved || facts->allocated || !facts->launched.empty());
        EXPECT_EQ(facts->effective(), "unknown");
      }
    }
    const Json answer = import_to_json(records, expected.source, expected.file);
    EXPECT_EQ(test::SchemaCheck("record-import.schema.json").check(answer), "");
    EXPECT_THAT(render_import(records), HasSubstr("not attested"));
  }
  EXPECT_EQ(seen.size(), import_sources().size()) << "a source without a sample";
}

TEST(Import, NoFileIsTakenForAnothersOutput) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"vllm-log-auto.txt", "vllm-log"},      {"vllm-metrics.txt", "vllm-metrics"},
      {"vllm-serve.json", "vllm-bench"},      {"vllm-pytorch.json", "vllm-bench"},
      {"sglang-log.txt", "sglang-log"},       {"sglang-info.json", "sglang-info"},
      {"sglang-bench.jsonl", "sglang-bench"}, {"llama-bench.json", "llama-bench"},
      {"llama-log.txt", "llama-log"},         {"llama-log-quiet.txt", "llama-log"},
      {"llama-props.json", "llama-props"},    {"aiconfigurator-disagg.csv", "aiconfigurator"},
      {"inferencex.json", "inferencex"},      {"aiperf.json", "aiperf"},
      {"guidellm.json", "guidellm"}};
  for (const auto& entry : files) {
    const std::string &file = entry.first, &own = entry.second;
    for (const std::string_view source : import_sources()) {
      SCOPED_TRACE(fmt::format("{} as {}", file, source));
      if (source == own) continue;
      expect_error(
          [&] { import_file(source, file); }, ErrorCode::kBadInput,
          fmt::format("{}: is no output of {}: it looks like that of {}; say --from {}", file, source, own, own));
    }
  }
}

// What llama-server answers besides: its metrics and slots name no type of a cache, so there is nothing to read.
TEST(Import, AnswersThatNameNoTypeAreNoSource) {
  for (const std::string file : {"llama-metrics.txt", "llama-slots.json"}) {
    EXPECT_EQ(read_text_file(test_file(file)).find("q8_0"), std::string::npos);
    for (const std::string_view source : import_sources()) {
      expect_error([&] { import_file(source, file); }, ErrorCode::kBadInput,
                   fmt::format("{}: is no output of {}: it has not ", file, source));
    }
  }
}

TEST(Import, FilesOfNoKnownToolAreRefused) {
  for (const std::string_view source : import_sources()) {
    for (const std::string text : {"", "hello\n", "{}", "[]", "[1, 2]", "null", "{\"a\": {\"b\": 1}}"}) {
      expect_error([&] { import_records(source, text, "x"); }, ErrorCode::kBadInput,
                   fmt::format("x: is no output of {}: it has not ", source));
    }
    expect_error([&] { import_records(source, "\xff", "x"); }, ErrorCode::kBadInput, "x");
  }
  expect_error([] { import_records("vllm", "{}", "x"); }, ErrorCode::kUsage, "--from \"vllm\" is no source of records");
}

TEST(Import, MalformedOutputNamesTheField) {
  const auto refuse = [](std::string_view source, const std::string& text, std::string_view words) {
    SCOPED_TRACE(text);
    expect_error([&] { import_records(source, text, "f"); }, ErrorCode::kBadInput, words);
  };
  refuse("vllm-log", "non-default args: {'model': 'm', 'kv_cache_dtype': 'fp8", "f: line 1: the arguments behind");
  refuse("vllm-log", "non-default args: {'model': 'm'", "f: line 1: the arguments behind");
  for (const std::string arguments :
       {"'kv_cache_dtype' 'fp8'", "'kv_cache_dtype': ", "kv_cache_dtype: fp8", "'kv_cache_dtype'", "'a': 1)", "': 1",
        "'kv_cache_dtype': 'fp8', 'kv_cache_dtype': 'auto'", "'kv_cache_dtype' 'x': 'fp8'", "'': 1"}) {
    refuse("vllm-log", fmt::format("non-default args: {{{}}}\n", arguments), "f: line 1: the arguments behind");
  }
  const std::string engine = "Initializing a V1 LLM engine (v1) with config: model='m', kv_cache_dtype=";
  refuse("vllm-log", engine + "auto\n" + engine + "fp8\n", "f: lines 1 and 2 have two values of kv_cache_dtype");
  refuse("vllm-log", engine + "fp8_e5m2", "f: line 1: the log ends inside kv_cache_dtype: give it whole");
  refuse("vllm-log", engine, "f: line 1: the log ends inside kv_cache_dtype");
  EXPECT_EQ(import_records("vllm-log", engine + "fp8_e5m2\n", "f")[0].record.key.requested, "fp8_e5m2");
  EXPECT_EQ(import_records("vllm-log", engine + "fp8_e5m2, seed=", "f")[0].record.key.requested, "fp8_e5m2");
  refuse("vllm-metrics", "vllm:num_requests_running{a=\"b\"} 0\n", "f: has no vllm:cache_config_info");
  refuse("vllm-metrics", "vllm:cache_config_info{cache_dtype=\"fp8\n", "f: line 1: the labels");
  refuse("vllm-metrics", "vllm:cache_config_info{block_size=\"x\"} 1\n", "f: line 1: the label block_size is \"x\"");
  refuse("vllm-bench", R"({"model_id": 1, "request_throughput": 1, "backend": "vllm"})",
         "f: field \"model_id\" must be");
  refuse("vllm-bench", R"({"model_id": "m", "request_throughput": 1, "model_id": "n"})",
         "f has the key \"model_id\" twice in one object");
  refuse("sglang-bench", "{\"backend\": \"sglang\"}\n{\"backend\": 1, \"backend\": 2}\n",
         "f: line 2 has the key \"backend\"");
  refuse("vllm-bench", R"([{"benchmark": {"extra_info": {}}, "metric": 1, "model": {"name": "m"}}])",
         "f: [0]: field \"benchmark.extra_info.args\" is missing");
  refuse("sglang-log", "server_args=ServerArgs(model_path='m'", "f: line 1: the arguments of ServerArgs have no end");
  refuse("sglang-log", "server_args=ServerArgs(kv_cache_dtype='a')\nserver_args=ServerArgs(kv_cache_dtype='b')\n",
         "f: lines 1 and 2 have two values");
  refuse("sglang-info", R"({"model_path": "m", "kv_cache_dtype": 8})", "f: field \"kv_cache_dtype\" must be a string");
  refuse("sglang-bench",
         R"({"backend": "sglang", "dataset_name": "d", "completed": 1, "server_info": {"model_path": "m"}})",
         "f: field \"server_info.kv_cache_dtype\" is missing");
  refuse("llama-bench", R"([{"build_commit": "c", "model_filename": "m", "type_k": "f16"}])",
         "f: [0]: field \"type_v\" is missing");
  refuse("llama-bench", R"([{"build_commit": "c", "model_filename": "m", "type_k": "f16", "type_v": "f16"}, 3])",
         "f: [1] must be a JSON object");
  refuse("llama-props", R"({"default_generation_settings": {}})", "f: field \"model_path\" is missing");
  refuse("aiconfigurator", "model,kvcache\n", "f: has a header and no row");
  refuse("aiconfigurator", "model,kvcache\nm\n", "f: line 2 has 1 cells, and the header 2");
  refuse("inferencex", R"({"hw": "h200", "framework": "vllm", "precision": "fp8", "tput_per_gpu": 1})",
         "f: field \"model\" is missing");
  refuse("aiperf", R"({"aiperf_version": 8})", "f: field \"aiperf_version\" must be a string");
  refuse("aiperf", R"({"aiperf_version": "1", "metrics": {"vllm:cache_config_info": {"series": [{}]}}})",
         "f: field \"metrics.vllm:cache_config_info.series[0].labels\" is missing");
  refuse("guidellm", R"({"benchmarks": [], "args": {}})", "f: field \"benchmarks\" is an empty list");
  refuse("guidellm", R"({"benchmarks": [{"start_time": "x"}], "args": {}})",
         "f: field \"benchmarks[0].start_time\" must be a number");
}

TEST(Import, WhatALogSaysBesidesIsANote) {
  EXPECT_THAT(import_file("vllm-log", "vllm-log-fp8.txt")[0].notes,
              ElementsAre(HasSubstr("line 5: \"Using fp8_e4m3 data type to store kv cache")));
  EXPECT_THAT(import_file("sglang-log", "sglang-log.txt")[0].notes,
              ElementsAre(HasSubstr("Using KV cache dtype: torch.bfloat16")));
  EXPECT_THAT(import_file("inferencex", "inferencex.json")[0].notes[0], HasSubstr("names the weights' type"));
}

// "keys f16, values q8_0 by line 12" of what a tool says that it allocated.
std::string printed(std::string_view source, const std::string& text) {
  const std::vector<ImportedRecord> records = import_records(source, text, "f");
  const auto &key = records[0].key_printed, &value = records[0].value_printed;
  if (!key || !value) return fmt::format("nothing; {}", fmt::join(records[0].notes, "; "));
  EXPECT_THAT(render_import(records),
              HasSubstr(fmt::format("printed    keys {}, values {}", key->format, value->format)));
  return fmt::format("keys {}, values {} by {}", key->format, value->format, key->at);
}

TEST(Import, WhatAnAllocatorPrintsStandsBesideTheRecord) {
  const auto of_file = [](std::string_view source, const std::string& file) {
    return printed(source, read_text_file(test_file(file)));
  };
  EXPECT_EQ(of_file("llama-log", "llama-log.txt"), "keys f16, values q8_0 by line 12");
  EXPECT_EQ(of_file("llama-log", "llama-log-equal.txt"), "keys q8_0, values q8_0 by line 12");
  EXPECT_EQ(of_file("llama-log", "llama-log-default.txt"), "keys f16, values f16 by line 12");
  EXPECT_EQ(of_file("llama-log", "llama-log-windows.txt"), "keys f16, values q8_0 by line 13");
  EXPECT_EQ(of_file("llama-log", "llama-log-quiet.txt"),
            "nothing; no line names the caches' types: write the log with -lv 4");
  EXPECT_EQ(of_file("sglang-log", "sglang-log.txt"), "keys torch.bfloat16, values torch.bfloat16 by line 4");
  // How earlier versions wrote it, and a draft with a cache of other types.
  const std::string earlier =
      "llama_kv_cache_init: KV self size  =  256.00 MiB, K (q8_0):  128.00 MiB, V (f16):  128.00 MiB\n";
  EXPECT_EQ(printed("llama-log", "llama_model_loader: x\n" + earlier), "keys q8_0, values f16 by line 2");
  EXPECT_EQ(printed("llama-log", "llama_kv_cache: size = 1 MiB (1 cells), K (f16): 1 MiB, V (f16): 0 MiB\n" + earlier),
            "nothing; lines 1 and 2 print caches of different types: keys f16, values f16; keys q8_0, values f16");
}

TEST(Import, AnEmptyTypeIsNoRequestAndAByteOrderMarkNoText) {
  const std::string row = R"([{"build_commit": "c", "model_filename": "m", "type_k": "", "type_v": "f16"}])";
  const ImportedRecord bench = import_records("llama-bench", row, "f")[0];
  EXPECT_FALSE(bench.record.key.requested);
  EXPECT_EQ(bench.key_decided_by, "");
  EXPECT_EQ(bench.record.value.requested, "f16");
  EXPECT_FALSE(
      import_records("vllm-metrics", "vllm:cache_config_info{cache_dtype=\"\"} 1\n", "f")[0].record.key.requested);
  EXPECT_FALSE(
      import_records("sglang-log", "server_args=ServerArgs(kv_cache_dtype='')\n", "f")[0].record.key.requested);
  const std::string marked = "\xEF\xBB\xBF" + read_text_file(test_file("aiconfigurator-agg.csv"));
  EXPECT_EQ(import_records("aiconfigurator", marked, "f")[0].record.key.requested, "fp8");
  EXPECT_EQ(import_records("aiconfigurator", "\xEF\xBB\xBFkvcache,model\nfp8,m\n", "f")[0].record.value.requested,
            "fp8");
}

// The engine's config shows a type that the arguments do not ask for: nobody's request.
TEST(Import, WhatTheEngineChoseByItselfIsNoRequest) {
  const std::string log =
      "non-default args: {'model': 'm'}\n"
      "Initializing a V1 LLM engine (v0.14.1) with config: model='m', kv_cache_dtype=fp8_e4m3\n";
  const std::vector<ImportedRecord> records = import_records("vllm-log", log, "f");
  EXPECT_FALSE(records[0].record.key.requested);
  EXPECT_THAT(records[0].notes, ElementsAre(HasSubstr("is fp8_e4m3, though no argument asked for it")));
}

TEST(Import, TheRestOfARecordComesFromItsOwnField) {
  const Record log = import_file("vllm-log", "vllm-log-fp8.txt")[0].record;
  EXPECT_EQ(log.engine_version, "0.19.2rc1.dev8");
  EXPECT_EQ(import_file("vllm-log", "vllm-log-auto.txt")[0].record.engine_version, "0.14.1");
  const Record server = import_file("llama-log", "llama-log.txt")[0].record;
  EXPECT_EQ(server.engine_version, "b1");
  EXPECT_EQ(server.build.hash, "0c1e570");
  EXPECT_EQ(server.launch.threads, 1);
  EXPECT_EQ(import_file("inferencex", "inferencex.json")[1].record.device.name, "b300");
  EXPECT_EQ(log.model.revision, "0e9e39f");
  EXPECT_EQ(log.model.native_dtype, "f16");
  const std::vector<ImportedRecord> metrics = import_file("vllm-metrics", "vllm-metrics.txt");
  EXPECT_EQ(metrics[0].record.layout.page_size, 16);
  EXPECT_EQ(metrics[1].record.layout.page_size, 32);
  EXPECT_EQ(metrics[1].record.value.requested, "fp8");
  const Record bench = import_file("llama-bench", "llama-bench.json")[1].record;
  EXPECT_EQ(bench.build.hash, "0c1e570");
  EXPECT_EQ(bench.device.name, "AMD EPYC");
  EXPECT_EQ(bench.launch.threads, 1);
  EXPECT_EQ(bench.started.size(), 20U);
  EXPECT_EQ(import_file("llama-bench", "llama-bench.jsonl")[1].record.value.requested, "q4_0");
  const std::vector<ImportedRecord> planned = import_file("aiconfigurator", "aiconfigurator-disagg.csv");
  EXPECT_EQ(planned[1].at, "line 2 (d)");
  EXPECT_EQ(planned[1].record.key.requested, "fp8");
  EXPECT_EQ(planned[1].record.device.name, "h200_sxm");
  const std::vector<ImportedRecord> load = import_file("guidellm", "guidellm.json");
  EXPECT_EQ(load[0].record.started, "2026-11-29T16:20:05Z");
  EXPECT_EQ(load[1].record.started, "");
  const Record profile = import_file("aiperf", "aiperf.json")[0].record;
  EXPECT_EQ(profile.started, "2026-11-20T12:00:00Z");
  EXPECT_EQ(profile.ended, "") << "a time without a zone is no time";
}

}  // namespace
}  // namespace asymkv
