#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/model/forward/decoder.h"

namespace asymkv {

// One kernel family this build knows, and why it cannot be used where it cannot.
struct BackendChoice {
  std::string name;  // "cpu", "ref", "cuda"
  bool available = false;
  std::string reason;  // empty if available
};
std::vector<BackendChoice> list_backends();

// The families behind a `--device` name: "cpu" (default), "ref" (double-precision oracle, slow) or "cuda" (a Hopper
// GPU: its attention kernels, caches, matrices and activations in its memory). The control family is `ref` for `cpu`;
// the others have none. Throws Error{kUnsupported} with the refusal's sentence, Error{kUsage} for an unknown name.
// Never falls back to another one.
Backends select_backends(std::string_view device, Activations activations = Activations::kF32);

// Whether caches, matrices and activations lie in a GPU's memory.
bool on_device(const Backends& backends);

}  // namespace asymkv
