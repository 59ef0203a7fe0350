// Input: the source of a chat template, then (behind the last byte FF) its variables as JSON; without them a short
// conversation with a tool. A template is parsed and rendered, or throws Error, within the limits it promises.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/model/chat/chat_template.h"

namespace {

constexpr std::string_view kConversation = R"({
  "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"},
               {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
                 "name": "add", "arguments": {"a": 2, "b": 2}}}]}, {"role": "tool", "content": "4"}],
  "tools": [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}],
  "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.rfind('\xFF'), size);
  const std::string_view text = end < size ? input.substr(end + 1) : kConversation;
  const auto variables = asymkv::OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!variables.is_object()) return -1;
  try {
    asymkv::ChatTemplate::parse(input.substr(0, end), "input").render(variables, 0);
  } catch (const asymkv::Error& e) {
    if (e.code() == asymkv::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
