#pragma once

namespace asymkv {

// Makes the first SIGINT or SIGTERM set a flag; a second one ends the process at once.
void install_interrupt_handler();
bool interrupted();
// Throws Error{kInterrupted} if the flag is set. Long loops call it between units of resumable work.
void throw_if_interrupted();

}  // namespace asymkv
