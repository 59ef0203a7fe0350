#include "chat_session.h"

#include <algorithm>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/model/chat/chat_tokens.h"
#include "run_record.h"

namespace asymkv::app {
std::optional<ChatTemplate> find_chat_template(const LoadedModel& model) {
  return model.files.gguf != nullptr ? load_chat_template(*model.files.gguf) : load_chat_template(model.files.path);
}

ChatSession::ChatSession(LoadedModel& model, KvCache& cache, ChatTemplate chat_template, const ChatLimits& limits,
                         const SamplingOptions& sampling)
    : model_(model), template_(std::move(chat_template)), limits_(limits), sampler_(sampling), sequence_(cache) {}

void ChatSession::reset() {
  turns_ = OrderedJson::array();
  sequence_.truncate(0);
  cached_ids_.clear();
}

OrderedJson ChatSession::messages() const {
  OrderedJson messages = OrderedJson::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const OrderedJson& turn : turns_) messages.push_back(turn);
  return messages;
}

std::vector<int32_t> ChatSession::prompt_ids() const {
  const Tokenizer& tokenizer = model_.tokenizer;
  return encode_chat(template_, tokenizer, chat_variables(tokenizer, messages()), std::time(nullptr));
}

int32_t ChatSession::token_after(std::span<const int32_t> tokens, OwnReads own_reads) {
  const int32_t next = next_token(model_, append_chunk(sequence_, tokens, own_reads), sampler_, limits_.native_dtype);
  cached_ids_.insert(cached_ids_.end(), tokens.begin(), tokens.end());
  return next;
}

int32_t ChatSession::prefill(const std::vector<int32_t>& ids, Answer& answer) {
  const auto differs = std::ranges::mismatch(ids, cached_ids_).in1;
  // The last token is always computed: its logits choose the first new one.
  const auto shared = std::min(differs - ids.begin(), static_cast<std::ptrdiff_t>(ids.size()) - 1);
  sequence_.truncate(shared);
  cached_ids_.resize(static_cast<size_t>(shared));
  answer.prompt_tokens = static_cast<int64_t>(ids.size());
  answer.reused_tokens = shared;
  return token_after(std::span(ids).subspan(static_cast<size_t>(shared)), OwnReads::kFresh);
}

std::string ChatSession::decode(int32_t token, Answer& answer, const std::function<void(std::string_view)>& on_text) {
  StreamDecoder decoder(model_.tokenizer, true);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    on_text(piece);
  };
  answer.end = AnswerEnd::kLength;
  while (answer.new_tokens < limits_.max_tokens) {
    if (interrupted()) {
      answer.end = AnswerEnd::kInterrupted;
      break;
    }
    ++answer.new_tokens;
    if (model_.is_end(token)) {
      answer.end = AnswerEnd::kStop;
      break;
    }
    add(decoder.push(token));
    if (sequence_.num_tokens() >= limits_.context) {
      answer.end = AnswerEnd::kContextFull;
      break;
    }
    if (answer.new_tokens < limits_.max_tokens) token = token_after(std::span(&token, 1), OwnReads::kStored);
  }
  add(decoder.flush());
  return text;
}

Answer ChatSession::ask(const std::string& text, const std::function<void(std::string_view)>& on_text) {
  turns_.push_back({{"role", "user"}, {"content", text}});
  try {
    const std::vector<int32_t> ids = prompt_ids();
    if (ids.empty()) throw_usage("the chat template gives no token for this conversation");
    if (static_cast<int64_t>(ids.size()) >= limits_.context) {
      throw_usage(
          "the conversation has {} tokens with this message and the context holds {}: shorten the message, start a new "
          "conversation with /reset, or give a larger --context",
          ids.size(), limits_.context);
    }
    Answer answer;
    const RunClock prefill_clock;
    const int32_t first = prefill(ids, answer);
    answer.prefill_seconds = prefill_clock.seconds();
    const RunClock decode_clock;
    turns_.push_back({{"role", "assistant"}, {"content", decode(first, answer, on_text)}});
    answer.decode_seconds = decode_clock.seconds();
    return answer;
  } catch (const Error&) {
    turns_.erase(turns_.size() - 1);
    throw;
  }
}

}  // namespace asymkv::app
