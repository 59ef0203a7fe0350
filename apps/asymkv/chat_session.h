#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/engine/generate.h"
#include "asymkv/engine/sampler.h"
#include "asymkv/kv/cache.h"
#include "asymkv/model/chat/chat_template.h"

namespace asymkv::app {

// The model's own chat template, if it has one.
std::optional<ChatTemplate> find_chat_template(const LoadedModel& model);

struct ChatLimits {
  int64_t max_tokens = 0;  // of one answer
  int64_t context = 0;     // tokens the cache holds
  DType native_dtype = DType::kBF16;
};

// How an answer came to its end.
enum class AnswerEnd { kStop, kLength, kInterrupted, kContextFull };

struct Answer {
  AnswerEnd end = AnswerEnd::kStop;
  int64_t prompt_tokens = 0;  // of the whole conversation
  int64_t reused_tokens = 0;  // of them found in the cache
  int64_t new_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

// A conversation and the cache that holds its beginning: of every turn only the tokens behind the common prefix are
// computed. The model and the cache outlive it.
class ChatSession {
 public:
  ChatSession(LoadedModel& model, KvCache& cache, ChatTemplate chat_template, const ChatLimits& limits,
              const SamplingOptions& sampling);

  // Takes a user's message and generates the answer; on_text sees it piece by piece. Ctrl-C stops it: what was written
  // stays in the conversation. On Error (and where the conversation has outgrown the context, Error{kUsage}) the
  // message is forgotten.
  Answer ask(const std::string& text, const std::function<void(std::string_view)>& on_text);
  // Forgets the conversation; the system message stays.
  void reset();
  // Takes effect with the next message; an empty one is none.
  void set_system(const std::string& text) { system_ = text; }

  // [{"role", "content"}], the system message first.
  OrderedJson messages() const;
  int64_t num_turns() const { return static_cast<int64_t>(turns_.size()); }
  int64_t num_tokens() const { return sequence_.num_tokens(); }

 private:
  std::vector<int32_t> prompt_ids() const;
  // Keeps what the cache shares with `ids`, computes the rest, and returns the token that follows.
  int32_t prefill(const std::vector<int32_t>& ids, Answer& answer);
  int32_t token_after(std::span<const int32_t> tokens, OwnReads own_reads);
  std::string decode(int32_t token, Answer& answer, const std::function<void(std::string_view)>& on_text);

  LoadedModel& model_;
  ChatTemplate template_;
  ChatLimits limits_;
  Sampler sampler_;
  std::string system_;
  OrderedJson turns_ = OrderedJson::array();
  SequencePages sequence_;
  std::vector<int32_t> cached_ids_;  // what `sequence_` begins with
};

}  // namespace asymkv::app
