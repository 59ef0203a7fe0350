#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace asymkv {

class GgufFile;

// JSON that keeps the order of keys: a template prints tools as the caller wrote them.
using OrderedJson = nlohmann::ordered_json;

// A chat template as published with a model: the subset of Jinja that published templates use, rendered as
// transformers renders it (jinja2 with trim_blocks, lstrip_blocks, the immutable sandbox and transformers' tojson).
// Templates are untrusted: steps, text, nesting and the length of ranges are limited. Immutable, cheap to copy, usable
// from many threads.
class ChatTemplate {
 public:
  // `origin` is named in errors. Throws Error{kBadInput} for a malformed template and Error{kUnsupported} for a
  // construct that is not served; both name line and column.
  static ChatTemplate parse(std::string_view source, std::string_view origin);

  // `variables` is an object: messages, tools, add_generation_prompt, bos_token, eos_token and whatever else the
  // template asks for. A missing variable is undefined, as in jinja2. `now` is what strftime_now shows, in local time.
  // Throws Error naming line and column; the message of raise_exception is in it.
  std::string render(const OrderedJson& variables, std::time_t now) const;
  std::string render(const OrderedJson& variables) const { return render(variables, std::time(nullptr)); }

  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// The template of a model, if it has one: of a folder chat_template.jinja, else "chat_template" of
// tokenizer_config.json (of several named ones "default"); of a GGUF file tokenizer.chat_template.
std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& model_path);
std::optional<ChatTemplate> load_chat_template(const GgufFile& file);

}  // namespace asymkv
