#include "side_documents.h"

#include <algorithm>
#include <span>

#include "asymkv/base/error.h"
#include "asymkv/model/chat/chat_tokens.h"
#include "chat_session.h"

namespace asymkv::app {

CaseTokenizer case_tokenizer(const LoadedModel& model) {
  CaseTokenizer tokenizer;
  tokenizer.count = [&model](std::string_view text) {
    return static_cast<int64_t>(model.tokenizer.encode(text, {.add_special = false, .parse_special = false}).size());
  };
  tokenizer.chat_frame = [&model](const std::string& begin) {
    const std::optional<ChatTemplate> found = find_chat_template(model);
    if (!found) throw_unsupported("{} has no chat template to ask the math questions by", model.files.path.string());
    return render_chat_frame(*found, model.tokenizer, begin);
  };
  tokenizer.has_bos = !model.tokenizer.encode("", {.add_special = true}).empty();
  return tokenizer;
}

std::vector<std::vector<int32_t>> make_side_documents(const LoadedModel& model, const Protocol& protocol,
                                                      const CaseFiles& files, uint64_t seed_offset) {
  Protocol side = protocol;
  side.seed = protocol.seed + seed_offset;
  std::erase_if(side.retrieval, [](const RetrievalPanel& panel) { return panel.source == DataSource::kFile; });
  for (RetrievalPanel& panel : side.retrieval)
    panel.count = std::min<int64_t>(panel.count, panel.length > 2048 ? 1 : 2);
  if (side.math && side.math->source == DataSource::kFile) side.math.reset();
  if (side.math) side.math->count = std::min<int64_t>(side.math->count, 12);
  std::erase_if(side.loss, [](const LossPanel& panel) { return panel.source == DataSource::kFile; });
  for (LossPanel& panel : side.loss) panel.documents = std::min<int64_t>(panel.documents, 2);
  std::vector<std::vector<int32_t>> documents;
  for (const Case& item : make_cases(side, files, case_tokenizer(model))) {
    const std::string text = item.context + item.question + item.expected;
    documents.push_back(model.tokenizer.encode(text, {.add_special = true, .parse_special = false}));
  }
  return documents;
}

std::vector<std::vector<int32_t>> cut_documents(const LoadedModel& model, const std::string& text, int64_t max_tokens,
                                                int64_t max_documents, const std::string& origin) {
  const std::vector<int32_t> start = model.tokenizer.encode("", {.add_special = true});
  const std::vector<int32_t> ids = model.tokenizer.encode(text, {.add_special = false, .parse_special = false});
  const auto size = static_cast<size_t>(max_tokens);
  ASYMKV_CHECK(size > start.size(), "documents of {} tokens hold nothing but the start of a text", max_tokens);
  const size_t body = size - start.size();
  std::vector<std::vector<int32_t>> documents;
  for (size_t begin = 0; begin < ids.size() && static_cast<int64_t>(documents.size()) < max_documents; begin += body) {
    const std::span<const int32_t> part = std::span(ids).subspan(begin, std::min(body, ids.size() - begin));
    documents.push_back(start);
    documents.back().insert(documents.back().end(), part.begin(), part.end());
  }
  if (documents.empty()) throw_bad_input("{} holds no token", origin);
  return documents;
}

}  // namespace asymkv::app
