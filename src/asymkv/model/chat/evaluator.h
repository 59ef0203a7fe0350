#pragma once

#include <ctime>
#include <string>

#include "asymkv/model/chat/syntax.h"

namespace asymkv::chat {

// Renders a parsed template. `variables` are what the template finds by name beside its own; `now` is the time that
// strftime_now shows. Throws Error naming line and column, also where a limit of `context` is reached.
std::string render(const Block& block, const Entries& variables, std::time_t now, Context& context);

}  // namespace asymkv::chat
