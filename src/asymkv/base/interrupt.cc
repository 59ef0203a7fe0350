#include "asymkv/base/interrupt.h"

#include <unistd.h>
#include <csignal>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

volatile std::sig_atomic_t interrupt_flag = 0;

void handle_signal(int signal_number) {
  if (interrupt_flag != 0) ::_exit(128 + signal_number);
  interrupt_flag = signal_number;
}

}  // namespace

void install_interrupt_handler() {
  std::signal(SIGINT, handle_signal);
  std::signal(SIGTERM, handle_signal);
}

bool interrupted() {
  return interrupt_flag != 0;
}

void clear_interrupt() {
  if (interrupt_flag == SIGINT) interrupt_flag = 0;
}

void throw_if_interrupted(std::string_view what_now) {
  if (interrupted()) {
    throw_error(ErrorCode::kInterrupted, "interrupted; {}", what_now);
  }
}

}  // namespace asymkv
