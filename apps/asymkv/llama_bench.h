#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace asymkv::app {

// One llama-bench run: prompt processing of `prompt` tokens, or generation of `generated` tokens, behind `depth` cached
// ones.
struct LlamaBenchCase {
  std::string model;  // GGUF file
  std::string key_type;
  std::string value_type;  // "f16", "q8_0"
  int64_t threads = 0;
  int64_t prompt = 0;
  int64_t generated = 0;
  int64_t depth = 0;
};

// Runs the program once (flash attention, one repetition) and returns its tokens per second. Throws Error{kUsage} if it
// cannot be started or fails, Error{kBadInput} if it prints something else than llama-bench's JSON.
double run_llama_bench(const std::string& program, const LlamaBenchCase& bench);

// Standard output of a program, started without a shell; Error{kUsage} naming it if it cannot run or exits other than
// 0.
std::string program_output(const std::vector<std::string>& argv);

}  // namespace asymkv::app
