#include "asymkv/model/tokenizer/pretokenizer.h"

#include <utility>

#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/normalizer.h"

namespace asymkv::tokenizer {
namespace {

struct Span {
  size_t begin, end;
  bool is_match;
};

// Matches and the gaps between them, covering the text. An empty match only cuts; one that touches the end of the
// match before it is passed over, as Oniguruma's iteration does.
std::vector<Span> find_spans(std::string_view text, const Pattern& pattern, Matcher& matcher) {
  std::vector<Span> spans;
  size_t covered = 0;
  bool matched_before = false;
  for (size_t start = 0; start <= text.size();) {
    const auto match = matcher.find(pattern, text, start);
    if (!match) break;
    const bool empty = match->begin == match->end;
    start = match->end;
    if (empty && start < text.size()) next_code_point(text, start);
    if (empty && match->end == text.size()) break;
    if (empty && matched_before && match->begin == covered) continue;
    if (match->begin > covered) spans.push_back({covered, match->begin, false});
    if (!empty) spans.push_back({match->begin, match->end, true});
    covered = match->end;
    matched_before = true;
  }
  if (covered < text.size()) spans.push_back({covered, text.size(), false});
  return spans;
}

void merge_with_previous(std::vector<Span>& spans) {
  std::vector<Span> merged;
  bool previous_is_match = false;
  for (const Span& span : spans) {
    if (span.is_match && !previous_is_match && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    previous_is_match = span.is_match;
  }
  spans = std::move(merged);
}

void merge_with_next(std::vector<Span>& spans) {
  std::vector<Span> merged;  // from the back
  bool next_is_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->is_match && !next_is_match && !merged.empty()) {
      merged.back().begin = span->begin;
    } else {
      merged.push_back(*span);
    }
    next_is_match = span->is_match;
  }
  spans.assign(merged.rbegin(), merged.rend());
}

void merge_contiguous(std::vector<Span>& spans) {
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && merged.back().is_match == span.is_match) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
  }
  spans = std::move(merged);
}

void apply_behavior(SplitBehavior behavior, std::vector<Span>& spans) {
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      std::erase_if(spans, [](const Span& span) { return span.is_match; });
      return;
    case SplitBehavior::kMergedWithPrevious:
      return merge_with_previous(spans);
    case SplitBehavior::kMergedWithNext:
      return merge_with_next(spans);
    case SplitBehavior::kContiguous:
      return merge_contiguous(spans);
  }
}

// The piece with its spaces spelled as `kind` says; `first`: it begins the whole text.
std::string spell_spaces(PreTokenizerStep::Kind kind, std::string_view piece, bool first) {
  if (kind == PreTokenizerStep::Kind::kPrefixSpace) return std::string(piece.starts_with(' ') ? "" : " ").append(piece);
  const bool prepends =
      kind == PreTokenizerStep::Kind::kEachSpaceMark || (kind == PreTokenizerStep::Kind::kFirstSpaceMark && first);
  std::string spelled = replace_all(piece, " ", kSpaceMark);
  if (prepends && !spelled.starts_with(kSpaceMark)) spelled.insert(0, kSpaceMark);
  return spelled;
}

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& step : steps) {
    std::optional<Pattern> pattern;
    if (step.kind == PreTokenizerStep::Kind::kSplitRegex) pattern = Pattern::regex(step.pattern, step.field);
    if (step.kind == PreTokenizerStep::Kind::kSplitLiteral) pattern = Pattern::literal(step.pattern, step.field);
    steps_.push_back({step, std::move(pattern)});
  }
}

void PreTokenizer::split(std::string_view text, bool begins_text, Matcher& matcher, Pieces& pieces) const {
  if (!text.empty()) pieces.words.push_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    for (const std::string_view piece : pieces.words) {
      if (!step.pattern) {
        const bool first = begins_text && piece.data() == text.data();
        pieces.changed.push_back(std::make_unique<std::string>(spell_spaces(step.definition.kind, piece, first)));
        next.push_back(*pieces.changed.back());
        continue;
      }
      std::vector<Span> spans = find_spans(piece, *step.pattern, matcher);
      if (step.definition.invert) {
        for (Span& span : spans) span.is_match = !span.is_match;
      }
      apply_behavior(step.definition.behavior, spans);
      for (const Span& span : spans) next.push_back(piece.substr(span.begin, span.end - span.begin));
    }
    pieces.words = std::move(next);
  }
}

}  // namespace asymkv::tokenizer
