#include "asymkv/base/error.h"
#include "asymkv/base/json.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/tokenizer/tokenizer.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> copy_strings(const GgufFile& file, std::string_view key) {
  const std::vector<std::string_view> views = file.require_strings(key);
  return {views.begin(), views.end()};
}

Tokenizer load_folder(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.json";
  if (!fs::is_regular_file(file)) {
    throw_bad_input("{} has no tokenizer.json (a model folder must hold the fast tokenizer's file)", folder.string());
  }
  Json config = Json::object();
  if (const fs::path path = folder / "tokenizer_config.json"; fs::is_regular_file(path)) config = read_json_file(path);
  if (!config.is_object()) throw_bad_input("{} must be a JSON object", (folder / "tokenizer_config.json").string());
  if (const fs::path path = folder / "generation_config.json"; fs::is_regular_file(path)) {
    const Json generation = read_json_file(path);
    if (!generation.is_object()) throw_bad_input("{} must be a JSON object", path.string());
    if (generation.contains("eos_token_id")) config["eos_token_id"] = generation["eos_token_id"];
  }
  return Tokenizer::from_json(read_json_file(file), file.string(), config);
}

}  // namespace

GgufTokenizerData read_gguf_tokenizer(const GgufFile& file) {
  GgufTokenizerData data;
  data.model = file.require_string("tokenizer.ggml.model");
  const bool sentencepiece = data.model == "llama";
  if (!sentencepiece && data.model != "gpt2") return data;  // refused by its name when a tokenizer is made of it
  data.pre =
      sentencepiece ? file.string_or("tokenizer.ggml.pre", "default") : file.require_string("tokenizer.ggml.pre");
  data.tokens = copy_strings(file, "tokenizer.ggml.tokens");
  data.token_types = file.require_ints("tokenizer.ggml.token_type");
  if (sentencepiece) {
    data.scores = file.require_floats("tokenizer.ggml.scores");
    data.add_space_prefix = file.bool_or("tokenizer.ggml.add_space_prefix", true);
  } else {
    data.merges = copy_strings(file, "tokenizer.ggml.merges");
  }
  const auto id = [&file](const char* key) {
    return file.has(key) ? std::optional(file.require_int(key)) : std::nullopt;
  };
  data.bos = id("tokenizer.ggml.bos_token_id");
  data.eos = id("tokenizer.ggml.eos_token_id");
  data.eot = id("tokenizer.ggml.eot_token_id");
  if (file.has("tokenizer.ggml.add_bos_token")) data.add_bos = file.require_bool("tokenizer.ggml.add_bos_token");
  return data;
}

Tokenizer load_tokenizer(const fs::path& model_path) {
  if (fs::is_directory(model_path)) return load_folder(model_path);
  if (model_path.extension() == ".json") return Tokenizer::from_json(read_json_file(model_path), model_path.string());
  if (model_path.extension() == ".gguf") {
    const GgufFile file(model_path);
    return Tokenizer::from_gguf_data(read_gguf_tokenizer(file), model_path.string());
  }
  throw_bad_input("{} is neither a model folder nor a .gguf or .json file, so it has no tokenizer",
                  model_path.string());
}

}  // namespace asymkv
