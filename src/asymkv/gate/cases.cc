#include "asymkv/gate/cases.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/embedded_cases.h"
#include "asymkv/gate/embedded_text.h"
#include "asymkv/gate/gsm8k.h"
#include "asymkv/gate/looks.h"
#include "asymkv/gate/random.h"
#include "asymkv/gate/text_cases.h"

namespace asymkv {
namespace {

using Paths = std::vector<std::filesystem::path>;

// Sentences of the built-in filler: more than the longest context needs, so that cases begin at different places.
constexpr int64_t kMinFillerSentences = 2000;

void resolve_files(std::vector<std::string>& hashes, const Paths& files, std::string_view panel) {
  const bool pinned = !hashes.empty();
  if (pinned && hashes.size() != files.size()) {
    throw_usage("panel {} of the protocol names {} data files, but {} were given", panel, hashes.size(), files.size());
  }
  for (size_t i = 0; i < files.size(); ++i) {
    std::string found = sha256_file_hex(files[i]);
    if (!pinned) {
      hashes.push_back(std::move(found));
    } else if (hashes[i] != found) {
      throw_bad_input("{} has SHA-256 {}, but panel {} of the protocol asks for {}", files[i].string(), found, panel,
                      hashes[i]);
    }
  }
}

const std::filesystem::path& given(const std::filesystem::path& path, std::string_view panel, std::string_view what) {
  if (path.empty()) throw_usage("panel {} needs {}", panel, what);
  return path;
}

Paths math_files(const MathPanel& panel, const CaseFiles& files) {
  Paths paths = {given(files.math_questions, "math", "--math-questions FILE, GSM8K's test questions")};
  if (panel.few_shot > 0)
    paths.push_back(given(files.math_few_shot, "math", "--math-examples FILE, GSM8K's training questions"));
  return paths;
}

Paths loss_files(const LossPanel& panel, const CaseFiles& files) {
  if (files.loss_texts.empty()) throw_usage("panel {} needs --loss-text FILE, one or more texts", panel.name());
  return files.loss_texts;
}

Paths filler_files(const RetrievalPanel& panel, const CaseFiles& files) {
  return {given(files.filler, panel.name(), "--filler FILE, a text to hide the needles in")};
}

std::vector<std::string> builtin_filler(const RetrievalPanel& panel, uint64_t seed) {
  Random random = Random::for_case(seed, panel.name() + "/filler", 0);
  std::vector<std::string> sentences;
  // A sentence has some 8 tokens or more.
  const int64_t count = std::max(kMinFillerSentences, panel.length / 4);
  while (std::ssize(sentences) < count) sentences.push_back(embedded_sentence(random));
  return sentences;
}

std::vector<Case> retrieval_cases(const RetrievalPanel& panel, uint64_t seed, const CaseFiles& files,
                                  const CaseTokenizer& tokenizer) {
  switch (panel.source) {
    case DataSource::kBuiltin: {
      auto cases = make_embedded_retrieval(panel, seed);
      require_byte_tokenizer(tokenizer, cases);
      return cases;
    }
    case DataSource::kGeneric:
      return make_generic_retrieval(panel, seed, tokenizer, builtin_filler(panel, seed), "the built-in filler");
    case DataSource::kFile:
      break;
  }
  const std::filesystem::path path = filler_files(panel, files).front();
  return make_generic_retrieval(panel, seed, tokenizer, split_sentences(read_utf8_text(path)), path.string());
}

Case math_case(const MathPanel& panel, const Gsm8kRow& row, size_t idx) {
  Case result;
  result.id = fmt::format("math/{:04d}", idx);
  result.panel = panel.name();
  result.kind = PanelKind::kMath;
  result.expected = row.gold;
  return result;
}

// Every question as a user's message behind the same instruction: what the template and we write before the question is
// the shared context.
std::vector<Case> chat_cases(const MathPanel& panel, const std::vector<Gsm8kRow>& rows,
                             const CaseTokenizer& tokenizer) {
  ASYMKV_CHECK(tokenizer.chat_frame != nullptr, "no chat template was asked for");
  const auto [head, tail] = tokenizer.chat_frame(std::string(kGsm8kInstruction));
  std::vector<Case> cases;
  for (const Gsm8kRow& row : rows) {
    Case result = math_case(panel, row, cases.size());
    result.context = head;
    result.question = row.question + tail;
    result.user_bytes = std::ssize(row.question);
    cases.push_back(std::move(result));
  }
  return cases;
}

std::vector<Case> math_cases(const MathPanel& panel, uint64_t seed, const CaseFiles& files,
                             const CaseTokenizer& tokenizer) {
  if (panel.source == DataSource::kBuiltin) {
    auto cases = make_embedded_math(panel, seed);
    require_byte_tokenizer(tokenizer, cases);
    return cases;
  }
  const Paths paths = math_files(panel, files);
  if (panel.prompt == MathPrompt::kChat) return chat_cases(panel, read_gsm8k(paths[0], panel.count), tokenizer);
  const std::string examples = panel.few_shot > 0 ? gsm8k_few_shot(read_gsm8k(paths[1], panel.few_shot)) : "";
  std::vector<Case> cases;
  for (const Gsm8kRow& row : read_gsm8k(paths[0], panel.count)) {
    Case result = math_case(panel, row, cases.size());
    // The examples are the same in all cases, so that one prefill of them can serve all.
    result.context = examples.empty() ? gsm8k_prompt(row) : examples;
    if (!examples.empty()) result.question = gsm8k_prompt(row);
    cases.push_back(std::move(result));
  }
  return cases;
}

std::vector<Case> loss_cases(const LossPanel& panel, uint64_t seed, const CaseFiles& files,
                             const CaseTokenizer& tokenizer) {
  if (panel.source == DataSource::kFile) return make_text_loss(panel, tokenizer, loss_files(panel, files));
  auto cases = make_embedded_loss(panel, seed);
  require_byte_tokenizer(tokenizer, cases);
  return cases;
}

}  // namespace

Protocol resolve_data(const Protocol& protocol, const CaseFiles& files) {
  Protocol resolved = protocol;
  for (RetrievalPanel& panel : resolved.retrieval) {
    if (panel.source == DataSource::kFile) {
      resolve_files(panel.data_sha256, filler_files(panel, files), panel.name());
    }
  }
  if (resolved.math && resolved.math->source == DataSource::kFile) {
    resolve_files(resolved.math->data_sha256, math_files(*resolved.math, files), "math");
  }
  for (LossPanel& panel : resolved.loss) {
    if (panel.source == DataSource::kFile) resolve_files(panel.data_sha256, loss_files(panel, files), panel.name());
  }
  return resolved;
}

std::vector<Case> make_cases(const Protocol& protocol, const CaseFiles& files, const CaseTokenizer& tokenizer) {
  std::vector<Case> cases;
  const auto add = [&](std::vector<Case> more) {
    cases.insert(cases.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  };
  for (const RetrievalPanel& panel : protocol.retrieval) {
    add(retrieval_cases(panel, protocol.seed, files, tokenizer));
  }
  if (protocol.math) add(math_cases(*protocol.math, protocol.seed, files, tokenizer));
  for (const LossPanel& panel : protocol.loss) add(loss_cases(panel, protocol.seed, files, tokenizer));
  return order_by_looks(protocol, std::move(cases));
}

}  // namespace asymkv
