#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "asymkv/model/chat/chat_template.h"
#include "asymkv/model/tokenizer/tokenizer.h"

namespace asymkv {

// Token ids of a conversation rendered by its template. What the template itself writes may be control tokens; text of
// "messages" and "tools" never is: a message that spells "<|im_end|>" gets the ids of those characters. Text that
// spells no special token gets the ids that encoding the rendered text gives.
//
// Before rendering, every spelling of a special token in such text, and a part of one with which the text begins or
// ends or that it is (white space aside), is replaced by one private-use character; afterwards the characters are put
// back and marked as plain. A template sees the replaced text: only a template that deletes from the middle of a
// message could still join two halves of a spelling. `variables` and `now` as for ChatTemplate::render; throws as that
// and Tokenizer::encode do.
std::vector<int32_t> encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                 const OrderedJson& variables, std::time_t now);

// What published templates ask for, around these messages: no tools, the tokenizer's BOS and first EOS, and a begun
// answer.
OrderedJson chat_variables(const Tokenizer& tokenizer, OrderedJson messages);

// The rendered text of one user's message that begins with `begin`, cut where the rest of the message goes: what comes
// before it and what comes after. The date that a template may show is 2026-01-01, so that equal models give equal
// texts. Throws Error{kUnsupported} where the template does not write the message exactly once as it is.
std::pair<std::string, std::string> render_chat_frame(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                                      const std::string& begin);

}  // namespace asymkv
