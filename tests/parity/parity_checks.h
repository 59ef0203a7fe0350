#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/model/forward/decoder.h"
#include "asymkv/model/model_files.h"

// The engine against golden files made by tests/parity/make_goldens.py and make_loss_goldens.py.
namespace asymkv::parity {

// A model without its tokenizer: the goldens hold token ids.
struct ParityModel {
  ModelFiles files;
  Decoder decoder;
};
std::unique_ptr<ParityModel> open_parity_model(const std::filesystem::path& path);

std::filesystem::path golden_path(const std::string& file);   // tests/golden/parity/FILE
std::filesystem::path source_path(const std::string& below);  // a path in the source tree
// A file that scripts/fetch_model.py caches, or nothing where it was not fetched.
std::optional<std::filesystem::path> fetched_model(const std::string& file);

// Where the engine left the golden tokens of one prompt.
struct Divergence {
  size_t prompt = 0;
  size_t step = 0;
  int32_t expected = 0;
  int32_t actual = 0;
  double margin = 0.0;  // between the two best logits of the golden, at that step
};

struct GreedyReport {
  size_t num_prompts = 0;
  size_t num_tokens = 0;  // compared and equal
  std::vector<Divergence> divergences;
  double largest_logit_error = 0.0;  // at the last prompt position, as a share of the largest |logit|
};
// Prefills every prompt of a greedy golden and decodes all side by side, FP32 keys and values. A prompt is compared up
// to its first divergence.
GreedyReport run_greedy(ParityModel& model, const Json& golden);
// Fails the test for a divergence at a margin of 0.01 or more, a logit further off than 1e-3 of the largest, and a
// golden that is not 20 prompts of 64 tokens; prints the excused divergences.
void expect_greedy_equal(ParityModel& model, const std::string& golden_file);

// Losses of one document in one arm: distance of the mean from the golden, and rms distance of single tokens.
struct LossDistance {
  double mean = 0.0;
  double token_rms = 0.0;
};
LossDistance loss_distance(ParityModel& model, const Json& document, const std::string& arm, OwnReads own_reads);
// Every document and arm of a loss golden on the reference path stays within the golden's limits.
void expect_losses_equal(ParityModel& model, const std::string& golden_file);
// The same comparison on a path that stores 8 bits but reads 16-bit values must exceed a limit, for each arm of `arms`.
void expect_silent_16_bit_reads_noticed(ParityModel& model, const std::string& golden_file,
                                        std::span<const std::string> arms);

}  // namespace asymkv::parity
