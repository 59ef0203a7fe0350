#include "asymkv/model/tokenizer/json_steps.h"

#include <algorithm>
#include <functional>

#include "asymkv/base/error.h"

namespace asymkv::tokenizer {
namespace {

constexpr int kMaxNesting = 4;  // of Sequence in Sequence

using StepReader = std::function<void(const std::string& type, const Json& step, const std::string& where)>;

// Visits a step, or the steps of a Sequence, whose list is called `list`.
void for_each_step(const Json& step, const char* list, const std::string& where, const StepReader& read,
                   int depth = 0) {
  const std::string type = require_string(step, "type", where);
  if (type != "Sequence") return read(type, step, where);
  if (depth >= kMaxNesting) throw_unsupported("{}: more than {} nested sequences", where, kMaxNesting);
  check_keys(step, {"type", list}, where);
  const Json& steps = require_array(step, list, where);
  for (size_t i = 0; i < steps.size(); ++i) {
    for_each_step(steps[i], list, fmt::format("{}.{}[{}]", where, list, i), read, depth + 1);
  }
}

[[noreturn]] void refuse_type(const std::string& type, const char* served, const std::string& where) {
  throw_unsupported("{}: type \"{}\" is not supported, only {}", where, type, served);
}

SplitBehavior read_behavior(const Json& step, const std::string& where) {
  const std::string name = require_string(step, "behavior", where);
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw_bad_input("{}: behavior \"{}\" is not known", where, name);
}

PreTokenizerStep regex_step(const char* pattern, const std::string& where) {
  PreTokenizerStep step;
  step.pattern = pattern;
  step.field = where;
  return step;
}

PreTokenizerStep read_split(const Json& object, const std::string& where) {
  check_keys(object, {"type", "pattern", "behavior", "invert"}, where);
  const Json& pattern = require_field(object, "pattern", where);
  check_keys(pattern, {"Regex", "String"}, where + ".pattern");
  if (pattern.size() != 1) throw_bad_input("{}: field \"pattern\" must hold \"Regex\" or \"String\"", where);
  const bool is_regex = pattern.contains("Regex");
  PreTokenizerStep step;
  step.kind = is_regex ? PreTokenizerStep::Kind::kSplitRegex : PreTokenizerStep::Kind::kSplitLiteral;
  step.pattern = require_string(pattern, is_regex ? "Regex" : "String", where + ".pattern");
  step.behavior = read_behavior(object, where);
  step.invert = bool_or(object, "invert", false, where);
  step.field = where + ".pattern";
  return step;
}

// trim_offsets moves character offsets, which are not computed here.
void check_byte_level(const Json& object, const std::string& where) {
  check_keys(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
  bool_or(object, "trim_offsets", true, where);
}

void read_byte_level(const Json& object, const std::string& where, TokenizerDefinition& definition) {
  check_byte_level(object, where);
  if (bool_or(object, "add_prefix_space", true, where)) {
    PreTokenizerStep step;
    step.kind = PreTokenizerStep::Kind::kPrefixSpace;
    definition.steps.push_back(step);
  }
  if (bool_or(object, "use_regex", true, where)) definition.steps.push_back(regex_step(kGpt2Pattern, where));
}

void read_digits(const Json& object, const std::string& where, TokenizerDefinition& definition) {
  check_keys(object, {"type", "individual_digits"}, where);
  PreTokenizerStep step = regex_step(R"(\p{N})", where);
  const bool individual = bool_or(object, "individual_digits", false, where);
  step.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
  definition.steps.push_back(std::move(step));
}

// Ids of one entry of "special_tokens", by its name.
std::vector<int32_t> template_ids(const Json& processor, const std::string& name, const std::string& where,
                                  const TokenizerDefinition& definition) {
  const Json& entry = require_field(require_field(processor, "special_tokens", where), name, where + ".special_tokens");
  const Json& values = require_array(entry, "ids", where + ".special_tokens." + name);
  std::vector<int32_t> ids;
  for (const Json& value : values) {
    const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
    if (!definition.has_token(id)) {
      throw_bad_input("{}: special_tokens.{}.ids has {}, which is not the id of a token", where, name,
                      short_dump(value));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void read_template(const Json& object, const std::string& where, TokenizerDefinition& definition) {
  check_keys(object, {"type", "single", "pair", "special_tokens"}, where);
  const Json& single = require_array(object, "single", where);
  bool behind_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const std::string item_where = fmt::format("{}.single[{}]", where, i);
    check_keys(single[i], {"SpecialToken", "Sequence"}, item_where);
    if (single[i].size() != 1) throw_bad_input("{} must hold \"SpecialToken\" or \"Sequence\"", item_where);
    if (single[i].contains("Sequence")) {
      const std::string id = require_string(single[i]["Sequence"], "id", item_where + ".Sequence");
      if (id != "A" || behind_text) throw_unsupported("{}: the text must stand in a template once, as A", item_where);
      behind_text = true;
      continue;
    }
    const std::string name = require_string(single[i]["SpecialToken"], "id", item_where + ".SpecialToken");
    auto& side = behind_text ? definition.suffix : definition.prefix;
    for (const int32_t id : template_ids(object, name, where, definition)) side.push_back(id);
  }
  if (!behind_text) throw_unsupported("{}: the template drops the text", where);
}

}  // namespace

void check_keys(const Json& object, std::initializer_list<const char*> known, const std::string& where) {
  if (!object.is_object()) throw_bad_input("{} must be an object, found {}", where, object.type_name());
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, std::string_view(key)) == known.end()) {
      throw_unsupported("{}: field \"{}\" is not known", where, key);
    }
  }
}

bool has_value(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && !it->is_null();
}

const Json& require_array(const Json& object, const std::string& field, const std::string& where) {
  const Json& value = require_field(object, field, where);
  if (!value.is_array())
    throw_bad_input("{}: field \"{}\" must be an array, found {}", where, field, value.type_name());
  return value;
}

std::string short_dump(const Json& value) {
  // dump() recurses, and the file decides how deep: say only the type of what has parts.
  if (value.is_structured()) return value.type_name();
  constexpr size_t kLongest = 60;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

void read_normalizer(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  if (!has_value(file, "normalizer")) return;
  for_each_step(file["normalizer"], "normalizers", where + ": normalizer",
                [&](const std::string& type, const Json& step, const std::string& step_where) {
                  if (type != "NFC") refuse_type(type, "NFC is", step_where);
                  check_keys(step, {"type"}, step_where);
                  definition.nfc = true;
                });
}

void read_pre_tokenizer(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  const std::string field = where + ": pre_tokenizer";
  bool byte_level = false;
  if (has_value(file, "pre_tokenizer")) {
    for_each_step(file["pre_tokenizer"], "pretokenizers", field,
                  [&](const std::string& type, const Json& step, const std::string& step_where) {
                    if (byte_level) throw_unsupported("{}: a step behind ByteLevel is not supported", step_where);
                    if (type == "Split") {
                      definition.steps.push_back(read_split(step, step_where));
                    } else if (type == "Digits") {
                      read_digits(step, step_where, definition);
                    } else if (type == "ByteLevel") {
                      read_byte_level(step, step_where, definition);
                      byte_level = true;
                    } else {
                      refuse_type(type, "Split, Digits and ByteLevel are", step_where);
                    }
                  });
  }
  if (!byte_level) throw_unsupported("{}: there is no ByteLevel step, and only byte-level BPE is supported", field);
}

void read_post_processor(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  if (!has_value(file, "post_processor")) return;
  bool seen = false;
  for_each_step(file["post_processor"], "processors", where + ": post_processor",
                [&](const std::string& type, const Json& step, const std::string& step_where) {
                  if (type == "ByteLevel") return check_byte_level(step, step_where);
                  if (type != "TemplateProcessing") {
                    refuse_type(type, "TemplateProcessing and ByteLevel are", step_where);
                  }
                  if (seen) throw_unsupported("{}: a second template is not supported", step_where);
                  seen = true;
                  read_template(step, step_where, definition);
                });
}

void check_decoder(const Json& file, const std::string& where) {
  const std::string field = where + ": decoder";
  bool byte_level = false;
  if (has_value(file, "decoder")) {
    for_each_step(file["decoder"], "decoders", field,
                  [&](const std::string& type, const Json& step, const std::string& step_where) {
                    if (type != "ByteLevel" || byte_level) refuse_type(type, "one ByteLevel is", step_where);
                    check_byte_level(step, step_where);
                    byte_level = true;
                  });
  }
  if (!byte_level) throw_unsupported("{}: there is no ByteLevel decoder", field);
}

}  // namespace asymkv::tokenizer
