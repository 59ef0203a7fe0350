#pragma once

#include <string_view>

#include "asymkv/base/error.h"

namespace asymkv {

// Makes the first SIGINT or SIGTERM set a flag; a second one ends the process at once.
void install_interrupt_handler();
bool interrupted();
// Forgets a SIGINT that has been answered, so that the next one does not end the process. A SIGTERM stays.
void clear_interrupt();
// Throws Error{kInterrupted} if the flag is set. `what_now` tells the user what is left and how to go on.
void throw_if_interrupted(std::string_view what_now = "nothing was written");

// What work() gives. An Error{kInterrupted}, for a flag that is set before it or thrown by it, says `what_now`.
template <typename Work>
auto run_unless_interrupted(std::string_view what_now, const Work& work) {
  throw_if_interrupted(what_now);
  try {
    return work();
  } catch (const Error& e) {
    if (e.code() == ErrorCode::kInterrupted) throw_if_interrupted(what_now);
    throw;
  }
}

}  // namespace asymkv
