#include "asymkv/model/tokenizer/json_steps.h"

#include <algorithm>
#include <functional>
#include <utility>

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

// A field that is served with one text only.
void require_text(const Json& object, const char* field, std::string_view served, const std::string& where) {
  const std::string text = require_string(object, field, where);
  if (text != served) throw_unsupported("{}: {} \"{}\" is not supported, only \"{}\" is", where, field, text, served);
}

// Replace, as normaliser or decoder, of one literal by another.
void check_replace(const Json& object, std::string_view from, std::string_view to, const std::string& where) {
  check_keys(object, {"type", "pattern", "content"}, where);
  const Json& pattern = require_field(object, "pattern", where);
  check_keys(pattern, {"String"}, where + ".pattern");
  require_text(pattern, "String", from, where + ".pattern");
  require_text(object, "content", to, where);
}

// When Metaspace puts a mark in front, as the kind of step that does so.
PreTokenizerStep::Kind read_metaspace_scheme(const Json& object, const std::string& where) {
  check_keys(object, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}, where);
  require_text(object, "replacement", kSpaceMark, where);
  const std::string scheme = string_or(object, "prepend_scheme", "always", where);
  // The older field may say no more than the newer one; the reference refuses a contradiction too.
  if (!bool_or(object, "add_prefix_space", true, where) && scheme != "never") {
    throw_bad_input("{}: add_prefix_space is false but prepend_scheme \"{}\"", where, scheme);
  }
  if (scheme == "always") return PreTokenizerStep::Kind::kEachSpaceMark;
  if (scheme == "first") return PreTokenizerStep::Kind::kFirstSpaceMark;
  if (scheme == "never") return PreTokenizerStep::Kind::kSpaceMark;
  throw_bad_input("{}: prepend_scheme \"{}\" is not known", where, scheme);
}

void read_metaspace(const Json& object, const std::string& where, TokenizerDefinition& definition) {
  PreTokenizerStep spell;
  spell.kind = read_metaspace_scheme(object, where);
  definition.steps.push_back(spell);
  if (!bool_or(object, "split", true, where)) return;
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::kSplitLiteral;
  split.pattern = kSpaceMark;
  split.behavior = SplitBehavior::kMergedWithNext;
  split.field = where;
  definition.steps.push_back(std::move(split));
}

int64_t read_strip(const Json& object, const std::string& where) {
  check_keys(object, {"type", "content", "start", "stop"}, where);
  require_text(object, "content", " ", where);
  const int64_t start = require_int(object, "start", where);
  const int64_t stop = require_int(object, "stop", where);
  if (start < 0 || stop != 0) {
    throw_unsupported("{}: start {} and stop {} are not supported, stop must be 0", where, start, stop);
  }
  return start;
}

// [Replace or Metaspace] [ByteFallback] [Fuse] [Strip]: marks to spaces, byte tokens to text, then the whole text's
// begin. Another order would mean another text.
void read_character_decoder(const Json& file, const std::string& field, TokenizerDefinition& definition) {
  enum Stage { kNone, kSpelled, kBytes, kFused, kStripped } stage = kNone;
  const auto advance = [&stage](Stage from, Stage to) {
    return std::exchange(stage, stage == from ? to : kNone) == from;
  };
  if (!has_value(file, "decoder")) throw_unsupported("{}: there is no decoder", field);
  for_each_step(
      file["decoder"], "decoders", field, [&](const std::string& type, const Json& step, const std::string& where) {
        bool in_order = false;
        if (type == "Replace") {
          in_order = advance(kNone, kSpelled);
          check_replace(step, kSpaceMark, " ", where);
        } else if (type == "Metaspace") {
          in_order = advance(kNone, kSpelled);
          definition.first_marks_dropped = read_metaspace_scheme(step, where) != PreTokenizerStep::Kind::kSpaceMark;
        } else if (type == "ByteFallback") {
          in_order = advance(kSpelled, kBytes);
          check_keys(step, {"type"}, where);
        } else if (type == "Fuse") {
          in_order = advance(kBytes, kFused);
          check_keys(step, {"type"}, where);
        } else if (type == "Strip") {
          in_order = advance(kFused, kStripped);
          definition.stripped_spaces = read_strip(step, where);
        }
        if (!in_order) {
          refuse_type(type, "Replace or Metaspace, ByteFallback, Fuse and Strip in this order are", where);
        }
      });
  if (stage < kBytes) throw_unsupported("{}: there is no ByteFallback step", field);
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
                  if (type == "NFC") {
                    check_keys(step, {"type"}, step_where);
                    definition.normalizer.push_back(NormalizerStep::kNfc);
                  } else if (type == "Prepend") {
                    check_keys(step, {"type", "prepend"}, step_where);
                    require_text(step, "prepend", kSpaceMark, step_where);
                    definition.normalizer.push_back(NormalizerStep::kPrependMark);
                  } else if (type == "Replace") {
                    check_replace(step, " ", kSpaceMark, step_where);
                    definition.normalizer.push_back(NormalizerStep::kMarkSpaces);
                  } else {
                    refuse_type(type, "NFC, Prepend and Replace are", step_where);
                  }
                });
}

void read_pre_tokenizer(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  const std::string field = where + ": pre_tokenizer";
  const char* const served = definition.character_level ? "Split, Digits and (with byte_fallback) Metaspace are"
                                                        : "Split, Digits and (without byte_fallback) ByteLevel are";
  bool byte_level = false;
  if (has_value(file, "pre_tokenizer")) {
    for_each_step(file["pre_tokenizer"], "pretokenizers", field,
                  [&](const std::string& type, const Json& step, const std::string& step_where) {
                    if (byte_level) throw_unsupported("{}: a step behind ByteLevel is not supported", step_where);
                    if (type == "Split") {
                      definition.steps.push_back(read_split(step, step_where));
                    } else if (type == "Digits") {
                      read_digits(step, step_where, definition);
                    } else if (type == "Metaspace" && definition.character_level) {
                      read_metaspace(step, step_where, definition);
                    } else if (type == "ByteLevel" && !definition.character_level) {
                      read_byte_level(step, step_where, definition);
                      byte_level = true;
                    } else {
                      refuse_type(type, served, step_where);
                    }
                  });
  }
  if (!byte_level && !definition.character_level) {
    throw_unsupported("{}: there is no ByteLevel step, and the model has no byte_fallback", field);
  }
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

void read_decoder(const Json& file, const std::string& where, TokenizerDefinition& definition) {
  const std::string field = where + ": decoder";
  if (definition.character_level) return read_character_decoder(file, field, definition);
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
