#pragma once

namespace asymkv {

// Makes the first SIGINT or SIGTERM set a flag; a second one ends the process at once.
void install_interrupt_handler();
bool interrupted();
// Forgets a SIGINT that has been answered, so that the next one does not end the process. A SIGTERM stays.
void clear_interrupt();
// Throws Error{kInterrupted} if the flag is set. Long loops call it between units of resumable work.
void throw_if_interrupted();

}  // namespace asymkv
