#include "asymkv/model/chat/chat_tokens.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"

namespace asymkv {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n\v\f";

// Supplementary Private Use Area A, four bytes each in UTF-8.
constexpr char32_t kFirstPrivate = 0xF0000;
constexpr char32_t kLastPrivate = 0xFFFFD;
constexpr size_t kPrivateBytes = 4;

bool is_word(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; });
}

// Stands one private-use character for each text that must stay plain, and puts the texts back.
class PlainText {
 public:
  // `source` is what is rendered: characters in it stand for themselves.
  PlainText(std::vector<std::string> spellings, std::string source)
      : spellings_(std::move(spellings)), source_(std::move(source)) {}

  // Replaces in every string of `json`, but for the names that templates compare with: keys, roles and types that are
  // nothing but words.
  OrderedJson hide(const OrderedJson& json) {
    if (json.is_string()) return hide_text(json.get_ref<const std::string&>());
    if (!json.is_structured()) return json;
    OrderedJson hidden = json.is_array() ? OrderedJson::array() : OrderedJson::object();
    for (const auto& [key, value] : json.items()) {
      if (json.is_array()) {
        hidden.push_back(hide(value));
      } else {
        const bool is_name = (key == "role" || key == "type") && value.is_string() && is_word(value.get<std::string>());
        hidden[is_word(key) ? key : hide_text(key)] = is_name ? value : hide(value);
      }
    }
    return hidden;
  }

  // Puts the texts back; appends where they lie to `plain`, ascending.
  std::string restore(std::string_view rendered, std::vector<TextRange>& plain) const {
    std::string text;
    for (size_t pos = 0; pos < rendered.size();) {
      const auto hidden = texts_.find(rendered.substr(pos, kPrivateBytes));
      if (hidden == texts_.end()) {
        text += rendered[pos++];
        continue;
      }
      plain.push_back({text.size(), text.size() + hidden->second.size()});
      text += hidden->second;
      pos += kPrivateBytes;
    }
    return text;
  }

 private:
  std::string hide_text(std::string_view text) {
    const size_t first = text.find_first_not_of(kWhiteSpace);
    if (first == std::string_view::npos) return std::string(text);
    const size_t end = text.find_last_not_of(kWhiteSpace) + 1;
    std::string hidden;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = hidden_length(text.substr(0, end), pos, first);
      hidden += length == 0 ? std::string(1, text[pos]) : stand_in(text.substr(pos, length));
      pos += std::max<size_t>(length, 1);
    }
    return hidden;
  }

  // Bytes at `pos` to be hidden: the longest spelling there, or the part of one that begins, ends or is the text.
  size_t hidden_length(std::string_view text, size_t pos, size_t first) const {
    if (pos >= text.size()) return 0;
    const std::string_view rest = text.substr(pos);
    size_t longest = 0;
    for (const std::string& spelling : spellings_) {
      if (rest.starts_with(spelling)) longest = std::max(longest, spelling.size());
      const size_t part = rest.size() < spelling.size() ? spelling.find(rest) : std::string::npos;
      if (part == 0 || (part != std::string::npos && pos == first)) longest = rest.size();
      for (size_t cut = 1; pos == first && cut < spelling.size(); ++cut) {
        if (rest.starts_with(std::string_view(spelling).substr(cut)))
          longest = std::max(longest, spelling.size() - cut);
      }
    }
    return longest;
  }

  const std::string& stand_in(std::string_view text) {
    const auto known = characters_.find(text);
    if (known != characters_.end()) return known->second;
    std::string character;
    do {
      if (next_ > kLastPrivate) throw_unsupported("the conversation uses every private-use character");
      character.clear();
      append_utf8(next_++, character);
    } while (source_.find(character) != std::string::npos);
    texts_.emplace(character, text);
    return characters_.emplace(text, character).first->second;
  }

  std::vector<std::string> spellings_;
  std::string source_;
  char32_t next_ = kFirstPrivate;
  std::map<std::string, std::string, std::less<>> characters_, texts_;  // text to character and back
};

}  // namespace

std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 const OrderedJson& variables, std::time_t now) {
  if (!variables.is_object()) throw_usage("the variables of a chat template must be a JSON object");
  PlainText plain_text(tokenizer.special_tokens(), chat_template.source() + variables.dump());
  OrderedJson hidden = variables;
  for (const char* name : {"messages", "tools"}) {
    if (hidden.contains(name)) hidden[name] = plain_text.hide(hidden[name]);
  }
  std::vector<TextRange> plain;
  const std::string text = plain_text.restore(chat_template.render(hidden, now), plain);
  // The template writes the beginning-of-sequence token itself where the model wants one.
  return tokenizer.encode(text, {.add_special = false, .parse_special = true, .plain = plain});
}

OrderedJson chat_variables(const Tokenizer& tokenizer, OrderedJson messages) {
  const auto text = [&tokenizer](const std::optional<int32_t>& id) {
    return id ? tokenizer.decode(std::span(&*id, 1), false) : std::string();
  };
  const std::vector<int32_t>& ends = tokenizer.eos_ids();
  return {{"messages", std::move(messages)},
          {"tools", nullptr},
          {"add_generation_prompt", true},
          {"bos_token", text(tokenizer.bos_id())},
          {"eos_token", text(ends.empty() ? std::nullopt : std::optional(ends.front()))}};
}

std::pair<std::string, std::string> render_chat_frame(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                      const std::string& begin) {
  constexpr std::time_t kNoon = 1'767'268'800;  // of 2026-01-01 UTC: the same day in all but the farthest time zones
  std::string mark;
  append_utf8(kFirstPrivate, mark);
  const OrderedJson message = {{"role", "user"}, {"content", begin + mark}};
  const std::string text = chat_template.render(chat_variables(tokenizer, OrderedJson::array({message})), kNoon);
  const size_t at = text.find(begin + mark);
  const size_t cut = at + begin.size();
  if (at == std::string::npos || text.find(mark) != cut || text.find(mark, cut + 1) != std::string::npos) {
    throw_unsupported("the chat template does not write a user's message exactly once as it is");
  }
  return {text.substr(0, cut), text.substr(cut + mark.size())};
}

}  // namespace asymkv
