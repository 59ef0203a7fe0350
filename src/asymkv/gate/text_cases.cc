#include "asymkv/gate/text_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/utf8.h"
#include "asymkv/gate/random.h"

namespace asymkv {
namespace {

constexpr auto kCities = std::to_array<std::string_view>(
    {"Lisbon", "Oslo",     "Vienna",  "Dublin",   "Athens",  "Warsaw", "Prague",  "Madrid",
     "Geneva", "Helsinki", "Lima",    "Quito",    "Nairobi", "Accra",  "Cairo",   "Tunis",
     "Amman",  "Ankara",   "Tbilisi", "Tashkent", "Hanoi",   "Manila", "Jakarta", "Seoul",
     "Osaka",  "Sydney",   "Hobart",  "Ottawa",   "Boston",  "Denver", "Havana",  "Bogota"});
constexpr auto kPlaces =
    std::to_array<std::string_view>({"archive", "library", "museum", "observatory", "harbor office", "train depot",
                                     "weather station", "botanical garden"});

struct Needles {
  std::vector<std::string> sentences;  // the one asked for first, then the distractors
  std::string question;
  std::string number;
};

std::string draw_digits(Random& random, int64_t digits) {
  std::string number(1, static_cast<char>('0' + random.between(1, 9)));
  while (std::ssize(number) < digits) number += static_cast<char>('0' + random.below(10));
  return number;
}

Needles draw_needles(Random& random, const RetrievalPanel& panel) {
  Needles needles;
  std::set<std::string> names, numbers;
  while (std::ssize(needles.sentences) <= panel.distractors) {
    const std::string_view city = random.choice(kCities);
    const std::string name = fmt::format("{} {}", city, random.choice(kPlaces));
    const std::string number = draw_digits(random, panel.digits);
    if (names.contains(name) || numbers.contains(number)) continue;
    names.insert(name);
    numbers.insert(number);
    if (needles.sentences.empty()) {
      needles.number = number;
      needles.question = fmt::format(
          "\nQuestion: What is the access number of the {}?\nAnswer: The access number of the {} is", name, name);
    }
    needles.sentences.push_back(fmt::format("The access number of the {} is {}. ", name, number));
  }
  return needles;
}

// A needle or distractor and the sentence it stands before.
struct Placed {
  int64_t at;
  size_t needle;
};

// Context out of sentences[0, count) and the needles; reports where the first needle starts.
std::string assemble(const std::vector<std::string_view>& sentences, const std::vector<Placed>& placed,
                     const Needles& needles, double& depth) {
  std::string text;
  size_t needle_begin = 0;
  size_t next = 0;
  for (size_t i = 0; i <= sentences.size(); ++i) {
    for (; next < placed.size() && placed[next].at <= static_cast<int64_t>(i); ++next) {
      // A sentence of a file may end in a newline or without white space.
      if (!text.empty() && text.back() != ' ' && text.back() != '\n') text += ' ';
      if (placed[next].needle == 0) needle_begin = text.size();
      text += needles.sentences[placed[next].needle];
    }
    if (i < sentences.size()) text += sentences[i];
  }
  depth = static_cast<double>(needle_begin) / static_cast<double>(text.size());
  return text;
}

std::vector<Placed> place(Random& random, const Needles& needles, int64_t count, double depth) {
  std::vector<Placed> placed;
  for (size_t needle = 0; needle < needles.sentences.size(); ++needle) {
    const int64_t at = needle == 0 ? std::llround(depth * static_cast<double>(count)) : random.between(0, count);
    placed.push_back({at, needle});
  }
  std::ranges::stable_sort(placed, {}, &Placed::at);
  return placed;
}

class RetrievalMaker {
 public:
  RetrievalMaker(const RetrievalPanel& panel, const CaseTokenizer& tokenizer, const std::vector<std::string>& filler,
                 const std::string& origin)
      : panel_(panel), tokenizer_(tokenizer), filler_(filler), origin_(origin) {
    for (const std::string& sentence : filler_) sentence_tokens_.push_back(tokenizer_.count(sentence));
  }

  Case make(Random random, int64_t idx) const {
    const Needles needles = draw_needles(random, panel_);
    const double depth = (static_cast<double>(idx % panel_.depths) + 0.5) / static_cast<double>(panel_.depths);
    const int64_t fixed = fixed_tokens(needles);
    int64_t budget = panel_.length - fixed - needle_tokens(needles);
    const Random drawn = random;
    Case result;
    result.id = fmt::format("{}/{:04d}", panel_.name(), idx);
    result.panel = panel_.name();
    result.kind = PanelKind::kRetrieval;
    result.question = needles.question;
    result.expected = needles.number;
    std::vector<std::string_view> sentences;
    const auto put_together = [&](Random draw) {
      const auto placed = place(draw, needles, std::ssize(sentences), depth);
      result.context = assemble(sentences, placed, needles, result.depth);
      result.length = fixed + tokenizer_.count(result.context);
    };
    // Pieces counted one by one come to more tokens than the whole as a rule: what is left is filled up once.
    for (int round = 0; round < 2; ++round) {
      random = drawn;
      sentences = take(random, budget);
      put_together(random);
      budget += panel_.length - result.length;
    }
    while (!sentences.empty() && result.length > panel_.length) {
      sentences.pop_back();
      put_together(random);
    }
    if (!sentences.empty()) return result;
    throw_bad_input("{}: no sentence fits into {} tokens beside the needles", origin_, panel_.length);
  }

 private:
  // BOS, question and answer.
  int64_t fixed_tokens(const Needles& needles) const {
    return (tokenizer_.has_bos ? 1 : 0) + tokenizer_.count(needles.question) + tokenizer_.count(" " + needles.number);
  }
  int64_t needle_tokens(const Needles& needles) const {
    int64_t total = 0;
    for (const std::string& sentence : needles.sentences) total += tokenizer_.count(sentence);
    return total;
  }

  // Consecutive sentences of at most `budget` tokens from a random place on; past the end the filler starts again.
  std::vector<std::string_view> take(Random& random, int64_t budget) const {
    std::vector<std::string_view> sentences;
    const auto count = std::ssize(filler_);
    const int64_t start = random.below(count);
    for (int64_t i = 0; i < count; ++i) {
      const auto idx = static_cast<size_t>((start + i) % count);
      if (sentence_tokens_[idx] > budget) return sentences;
      budget -= sentence_tokens_[idx];
      sentences.push_back(filler_[idx]);
    }
    throw_bad_input("{} is too short to fill {} tokens: give a longer text", origin_, panel_.length);
  }

  const RetrievalPanel& panel_;
  const CaseTokenizer& tokenizer_;
  const std::vector<std::string>& filler_;
  const std::string& origin_;
  std::vector<int64_t> sentence_tokens_;
};

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// A file that hands out documents from its start.
class DocumentSource {
 public:
  explicit DocumentSource(const std::filesystem::path& path) : text_(read_utf8_text(path)) {}

  // The shortest next piece, cut before white space, that has at least `tokens` tokens; empty if the rest is shorter.
  std::string next(int64_t tokens, const CountTokens& count) {
    const std::string_view rest = std::string_view(text_).substr(begin_);
    size_t high = std::min(rest.size(), static_cast<size_t>(tokens) * 2);
    size_t low = 0;
    while (count(rest.substr(0, cut(rest, high))) < tokens) {
      if (high >= rest.size()) return {};
      low = high;
      high = std::min(rest.size(), high * 2);
    }
    // Invariant: the piece up to cut(high) is long enough, the one up to cut(low) is not.
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      (count(rest.substr(0, cut(rest, middle))) >= tokens ? high : low) = middle;
    }
    const std::string_view piece = rest.substr(0, cut(rest, high));
    begin_ += piece.size();
    return std::string(piece);
  }

 private:
  // First place at or after `at` where white space begins, or the end.
  static size_t cut(std::string_view rest, size_t at) {
    while (at < rest.size() && !is_space(rest[at])) ++at;
    return at;
  }

  std::string text_;
  size_t begin_ = 0;
};

}  // namespace

std::string read_utf8_text(const std::filesystem::path& path) {
  std::string text = read_text_file(path);
  require_utf8(text, path.string());
  return text;
}

std::vector<std::string> split_sentences(std::string_view text) {
  std::vector<std::string> sentences;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool stop = text[i] == ' ' && i > 0 && (text[i - 1] == '.' || text[i - 1] == '!' || text[i - 1] == '?');
    if (!stop && text[i] != '\n') continue;
    sentences.emplace_back(text.substr(begin, i + 1 - begin));
    begin = i + 1;
  }
  if (begin < text.size()) sentences.emplace_back(text.substr(begin));
  return sentences;
}

std::vector<Case> make_generic_retrieval(const RetrievalPanel& panel, uint64_t seed, const CaseTokenizer& tokenizer,
                                         const std::vector<std::string>& filler, const std::string& origin) {
  if (filler.empty()) throw_bad_input("{} holds no text for retrieval", origin);
  const RetrievalMaker maker(panel, tokenizer, filler, origin);
  std::vector<Case> cases;
  for (int64_t i = 0; i < panel.count; ++i) cases.push_back(maker.make(Random::for_case(seed, panel.name(), i), i));
  return cases;
}

std::vector<Case> make_text_loss(const LossPanel& panel, const CaseTokenizer& tokenizer,
                                 const std::vector<std::filesystem::path>& files) {
  std::vector<DocumentSource> sources(files.begin(), files.end());
  const int64_t tokens = panel.document_tokens - (tokenizer.has_bos ? 1 : 0);
  std::vector<Case> cases;
  for (size_t turn = 0, misses = 0; std::ssize(cases) < panel.documents; ++turn) {
    if (misses >= sources.size()) {
      throw_bad_input("the loss texts hold {} documents of {} tokens, but the protocol asks for {}: give more text",
                      cases.size(), panel.document_tokens, panel.documents);
    }
    std::string text = sources[turn % sources.size()].next(tokens, tokenizer.count);
    if (text.empty()) {
      ++misses;
      continue;
    }
    misses = 0;
    Case result;
    result.id = fmt::format("{}/{:04d}", panel.name(), cases.size());
    result.panel = panel.name();
    result.kind = PanelKind::kLoss;
    result.context = std::move(text);
    result.length = panel.document_tokens;
    result.scored_tokens = panel.scored_tokens;
    cases.push_back(std::move(result));
  }
  return cases;
}

}  // namespace asymkv
