#pragma once

#include <span>
#include <vector>

#include "asymkv/engine/loaded_model.h"
#include "asymkv/gate/probe.h"

namespace asymkv::app {

// Runs the fragility probe: a native forward pass of each document, measuring every layer's attention with E4M3 keys
// and with E4M3 values. Documents are token ids; the last queries of each are compared.
ProbeResult run_probe(LoadedModel& model, std::span<const std::vector<int32_t>> documents);

}  // namespace asymkv::app
