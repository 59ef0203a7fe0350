// Values as text: Python's str() and repr(), and json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "asymkv/model/chat/text.h"
#include "asymkv/model/chat/value.h"

namespace asymkv::chat {
namespace {

using Kind = Value::Kind;

std::string quoted(std::string_view text) {
  const bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out.append(1, '\\').append(1, c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string list_repr(const ListData& list) {
  std::string out(1, list.tuple ? '(' : '[');
  for (size_t i = 0; i < list.items.size(); ++i) out += (i == 0 ? "" : ", ") + to_repr(list.items[i]);
  if (list.tuple && list.items.size() == 1) out += ",";
  return out + (list.tuple ? ')' : ']');
}

std::string entries_repr(const Entries& entries) {
  std::string out = "{";
  for (size_t i = 0; i < entries.size(); ++i) {
    out += (i == 0 ? "" : ", ") + quoted(entries[i].first) + ": " + to_repr(entries[i].second);
  }
  return out + "}";
}

void append_utf16_escape(std::string& out, char32_t code) {
  if (code >= 0x10000) {
    code -= 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800U + (static_cast<uint32_t>(code) >> 10U),
                       0xDC00U + (static_cast<uint32_t>(code) & 0x3FFU));
  } else {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
  }
}

char32_t decode(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(character[i])); };
  if (character.size() == 1) return byte(0);
  if (character.size() == 2) return ((byte(0) & 0x1F) << 6) | (byte(1) & 0x3F);
  if (character.size() == 3) return ((byte(0) & 0xF) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
  return ((byte(0) & 7) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F);
}

std::string json_string(std::string_view text, bool ascii) {
  std::string out = "\"";
  const std::vector<size_t> offsets = character_offsets(text);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string_view character = text.substr(offsets[i], offsets[i + 1] - offsets[i]);
    const char32_t code = decode(character);
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    const size_t known = character.size() == 1 ? kShort.find(character[0]) : kShort.npos;
    if (known != kShort.npos) {
      out.append(1, '\\').append(1, "\"\\bfnrt"[known]);
    } else if (code < 0x20 || (ascii && code >= 0x7f + 1)) {
      append_utf16_escape(out, code);
    } else {
      out += character;
    }
  }
  return out + '"';
}

class JsonWriter {
 public:
  JsonWriter(Context& context, const JsonStyle& style) : context_(context), style_(style) {}

  void write(const Value& value, int level) {
    context_.charge_steps(1);
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        return;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Kind::kInt:
        out_ += fmt::to_string(value.as_int());
        return;
      case Kind::kFloat:
        return write_float(value.as_double());
      case Kind::kString:
        out_ += json_string(value.as_string(), style_.ascii);
        return;
      case Kind::kList:
        return write_list(value.as_list()->items, level);
      case Kind::kDict:
        return write_dict(value.as_dict().entries, level);
      default:
        context_.fail("a {} cannot be written as JSON", value.kind_name());
    }
  }
  std::string take() { return std::move(out_); }

 private:
  void write_float(double value) {
    if (std::isfinite(value)) {
      out_ += float_text(value);
    } else {
      out_ += std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    }
  }
  void separate(bool first, int level) {
    if (!first) out_ += style_.item_separator;
    if (!style_.pretty) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += style_.indent;
  }
  void write_list(const Items& items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      separate(i == 0, level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) close(level);
    out_ += ']';
  }
  void write_dict(const Entries& entries, int level) {
    std::vector<const Entry*> order;
    for (const Entry& entry : entries) order.push_back(&entry);
    if (style_.sort_keys) std::ranges::sort(order, {}, [](const Entry* entry) { return entry->first; });
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      separate(i == 0, level + 1);
      out_ += json_string(order[i]->first, style_.ascii) + style_.key_separator;
      write(order[i]->second, level + 1);
    }
    if (!entries.empty()) close(level);
    out_ += '}';
  }
  void close(int level) {
    if (style_.pretty) separate(true, level);
  }

  Context& context_;
  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);  // "1e-05": two digits at least, as in Python
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, static_cast<size_t>(fixed_end - buffer));
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string to_repr(const Value& value) {
  return value.is(Kind::kString)      ? quoted(value.as_string())
         : value.is(Kind::kUndefined) ? "Undefined"
                                      : to_text(value);
}

std::string to_text(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return fmt::to_string(value.as_int());
    case Kind::kFloat:
      return float_text(value.as_double());
    case Kind::kString:
      return value.as_string();
    case Kind::kList:
      return list_repr(*value.as_list());
    case Kind::kDict:
      return entries_repr(value.as_dict().entries);
    case Kind::kNamespace:
      return "<Namespace " + entries_repr(value.as_namespace().entries) + ">";
    case Kind::kLoop:
      return fmt::format("<LoopContext {}/{}>", value.as_loop().idx + 1, value.as_loop().items->items.size());
    case Kind::kCallable:
      break;
  }
  return "<function " + value.as_callable().name + ">";
}

std::string to_json_text(Context& context, const Value& value, const JsonStyle& style) {
  JsonWriter writer(context, style);
  writer.write(value, 0);
  std::string text = writer.take();
  context.charge_text(text.size());
  return text;
}

}  // namespace asymkv::chat
