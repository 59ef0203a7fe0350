#include "asymkv/model/chat/chat_template.h"

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/json.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/chat/evaluator.h"
#include "asymkv/model/gguf.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using chat::Context;
using chat::Value;

constexpr size_t kMaxTemplateBytes = 1 << 20;  // ours: the longest published ones have some 20 KB

Value from_json(Context& context, const OrderedJson& json, int depth) {
  if (depth > chat::kMaxNesting) context.fail("the messages are nested more than {} deep", chat::kMaxNesting);
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        context.refuse("the integer {} does not fit 64 bits", json.get<uint64_t>());
      }
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      return Value::number(json.get<double>());
    case OrderedJson::value_t::string:
      return Value::string(json.get<std::string>());
    case OrderedJson::value_t::array: {
      chat::Items items;
      for (const OrderedJson& item : json) items.push_back(from_json(context, item, depth + 1));
      return Value::list(context, std::move(items));
    }
    case OrderedJson::value_t::object: {
      chat::Entries entries;
      for (const auto& [key, item] : json.items()) entries.emplace_back(key, from_json(context, item, depth + 1));
      return Value::dict(context, std::move(entries));
    }
    default:
      return Value::none();
  }
}

// The template named "default", or the only one.
std::optional<std::string> named_template(const Json& list, const std::string& where) {
  for (const Json& entry : list) {
    if (require_string(entry, "name", where) == "default") return require_string(entry, "template", where);
  }
  throw_unsupported("{}: there is no chat template named \"default\"", where);
}

std::optional<std::string> configured_template(const fs::path& path) {
  const Json config = read_json_file(path);
  if (!config.is_object() || !config.contains("chat_template") || config["chat_template"].is_null())
    return std::nullopt;
  const std::string where = path.string() + ": chat_template";
  if (config["chat_template"].is_array()) return named_template(config["chat_template"], where);
  return require_string(config, "chat_template", path.string());
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::string origin;
  chat::Block block;
};

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view origin) {
  require_utf8(source, origin);
  if (source.size() > kMaxTemplateBytes) {
    throw_bad_input("{}: the chat template has {} bytes, at most {} are read", origin, source.size(),
                    kMaxTemplateBytes);
  }
  auto impl = std::make_shared<Impl>();
  impl->source = source;
  impl->origin = origin;
  Context context(origin, chat::Limits{});
  impl->block = chat::parse_template(source, context);
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(const OrderedJson& variables, std::time_t now) const {
  if (!variables.is_object()) throw_usage("the variables of a chat template must be a JSON object");
  Context context(impl_->origin, chat::Limits{});
  chat::Entries entries;
  for (const auto& [name, value] : variables.items()) entries.emplace_back(name, from_json(context, value, 0));
  return chat::render(impl_->block, entries, now, context);
}

const std::string& ChatTemplate::source() const {
  return impl_->source;
}

std::optional<ChatTemplate> load_chat_template(const GgufFile& file) {
  if (!file.has("tokenizer.chat_template")) return std::nullopt;
  return ChatTemplate::parse(file.require_string("tokenizer.chat_template"),
                             file.origin() + ": tokenizer.chat_template");
}

std::optional<ChatTemplate> load_chat_template(const fs::path& model_path) {
  std::error_code error;
  if (!fs::is_directory(model_path, error)) return load_chat_template(GgufFile(model_path));
  if (const fs::path path = model_path / "chat_template.jinja"; fs::is_regular_file(path, error)) {
    return ChatTemplate::parse(read_text_file(path), path.string());
  }
  const fs::path path = model_path / "tokenizer_config.json";
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const std::optional<std::string> source = configured_template(path);
  if (!source) return std::nullopt;
  return ChatTemplate::parse(*source, path.string() + ": chat_template");
}

}  // namespace asymkv
