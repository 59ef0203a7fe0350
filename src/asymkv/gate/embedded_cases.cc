#include "asymkv/gate/embedded_cases.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/gate/embedded_text.h"
#include "asymkv/gate/random.h"
#include "asymkv/gate/word_problems.h"

namespace asymkv {
namespace {

Case start_case(const std::string& panel, PanelKind kind, int64_t idx) {
  Case result;
  result.id = fmt::format("{}/{:04d}", panel, idx);
  result.panel = panel;
  result.kind = kind;
  return result;
}

// Puts each needle before the filler sentence of its index; reports where the first needle starts, as a share.
std::string hide(const std::vector<std::string>& filler, const std::vector<std::string>& needles,
                 const std::vector<int64_t>& at, double& depth) {
  std::vector<size_t> order(needles.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return at[i]; });
  std::string text;
  size_t begin = 0, sentence = 0;
  for (const size_t i : order) {
    while (std::cmp_less(sentence, at[i])) text += filler[sentence++];
    if (i == 0) begin = text.size();
    text += needles[i];
  }
  while (sentence < filler.size()) text += filler[sentence++];
  depth = static_cast<double>(begin) / static_cast<double>(text.size());
  return text;
}

Case make_retrieval_case(const RetrievalPanel& panel, Random random, int64_t idx) {
  Case result = start_case(panel.name(), PanelKind::kRetrieval, idx);
  // Half of the names asked for are held-out pairs: the answer must come from the context, not from training.
  const auto names = embedded_names(random, panel.distractors + 1, random.chance(1, 2));
  std::vector<std::string> needles;
  std::set<std::string> codes;
  int64_t needle_bytes = 0;
  for (const std::string& name : names) {
    std::string code = embedded_code(random);
    while (!codes.insert(code).second) code = embedded_code(random);
    if (needles.empty()) result.expected = code;
    needles.push_back(embedded_needle(name, code));
    needle_bytes += std::ssize(needles.back());
  }
  result.question = embedded_question(names.front());
  result.length = panel.length;
  const int64_t filler_bytes = panel.length - 1 - needle_bytes - std::ssize(result.question) - panel.digits;
  if (filler_bytes < 1) throw_bad_input("panel {}: the needles leave no room for text: raise its length", panel.name());
  const auto filler = embedded_filler(random, filler_bytes);
  const double depth = (static_cast<double>(idx % panel.depths) + 0.5) / static_cast<double>(panel.depths);
  std::vector<int64_t> at = {std::llround(depth * static_cast<double>(filler.size()))};
  while (at.size() < needles.size()) at.push_back(random.between(0, std::ssize(filler)));
  result.context = hide(filler, needles, at, result.depth);
  return result;
}

}  // namespace

std::vector<Case> make_embedded_retrieval(const RetrievalPanel& panel, uint64_t seed) {
  std::vector<Case> cases;
  for (int64_t i = 0; i < panel.count; ++i) {
    cases.push_back(make_retrieval_case(panel, Random::for_case(seed, panel.name(), i), i));
  }
  return cases;
}

std::vector<Case> make_embedded_math(const MathPanel& panel, uint64_t seed) {
  std::vector<Case> cases;
  std::set<std::string> prompts;
  for (int64_t i = 0; i < panel.count; ++i) {
    Random random = Random::for_case(seed, panel.name(), i);
    WordProblem problem = make_word_problem(random);
    // A repeated question would count one answer twice.
    while (!prompts.insert(problem.prompt).second) problem = make_word_problem(random);
    Case result = start_case(panel.name(), PanelKind::kMath, i);
    result.context = std::move(problem.prompt);
    result.expected = fmt::format("{}", problem.answer);
    cases.push_back(std::move(result));
  }
  return cases;
}

std::vector<Case> make_embedded_loss(const LossPanel& panel, uint64_t seed) {
  std::vector<Case> cases;
  for (int64_t i = 0; i < panel.documents; ++i) {
    Random random = Random::for_case(seed, panel.name(), i);
    Case result = start_case(panel.name(), PanelKind::kLoss, i);
    for (const std::string& sentence : embedded_filler(random, panel.document_tokens - 1)) result.context += sentence;
    result.length = panel.document_tokens;
    result.scored_tokens = panel.scored_tokens;
    cases.push_back(std::move(result));
  }
  return cases;
}

void require_byte_tokenizer(const CaseTokenizer& tokenizer, const std::vector<Case>& cases) {
  if (!tokenizer.has_bos) {
    throw_unsupported(
        "the builtin panels are for the embedded models, whose tokenizer puts BOS first; this one has no BOS: use "
        "--protocol quick");
  }
  for (const Case& value : cases) {
    for (const std::string* text : {&value.context, &value.question}) {
      const int64_t tokens = text->empty() ? 0 : tokenizer.count(*text);
      if (tokens == std::ssize(*text)) continue;
      throw_unsupported(
          "the builtin panels are for the embedded byte-level models, but this tokenizer makes {} tokens of {} bytes: "
          "use --protocol quick",
          tokens, text->size());
    }
    return;  // one case tells
  }
}

}  // namespace asymkv
