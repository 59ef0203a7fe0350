#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/tokenizer/tokenizer.h"

namespace {

using asymkv::Tokenizer;

[[noreturn]] void report_broken_promise() {
  std::abort();
}

// Decoding at once and id by id must agree, whatever the ids.
void check_decoding(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    asymkv::StreamDecoder decoder(tokenizer, skip_special);
    std::string streamed;
    for (const int32_t id : ids) streamed += decoder.push(id);
    streamed += decoder.flush();
    if (streamed != tokenizer.decode(ids, skip_special)) report_broken_promise();
  }
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, {.add_special = true, .parse_special = parse_special});
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab_size()) report_broken_promise();
    }
    check_decoding(tokenizer, ids);
  }
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<signed char>(c) * 3);
  check_decoding(tokenizer, ids);
}

Tokenizer read_tokenizer(std::string_view file) {
  if (file.starts_with("GGUF")) {
    const asymkv::GgufFile gguf(std::as_bytes(std::span(file)), "input");
    return Tokenizer::from_gguf_data(asymkv::read_gguf_tokenizer(gguf), "input");
  }
  return Tokenizer::from_json(asymkv::parse_json(file, "input"), "input");
}

}  // namespace

// Input: a tokenizer.json or a GGUF file, then (behind the last byte FF, which neither JSON nor UTF-8 has) a text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.rfind('\xFF'), size);
  const std::string_view text = end < size ? input.substr(end + 1) : "It's  12 <|im_end|> caf\xC3\xA9 e\xCC\x81\n";
  try {
    check_text(read_tokenizer(input.substr(0, end)), text);
  } catch (const asymkv::Error& e) {
    if (e.code() == asymkv::ErrorCode::kInternal) report_broken_promise();
  }
  return 0;
}
