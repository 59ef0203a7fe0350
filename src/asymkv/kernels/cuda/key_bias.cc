#include "asymkv/kernels/cuda/key_bias.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

BiasFrequency frequency_of(double radians) {
  const double turns = radians / (2.0 * std::numbers::pi);
  const auto high = static_cast<float>(turns);
  const double half_window = kWindowPages * kPageSize / 2;
  return {high, static_cast<float>(turns - static_cast<double>(high)), static_cast<float>(radians * half_window), 0.0F};
}

// The pairs that any head has in a class, in rising order.
std::vector<int64_t> pairs_of_class(const KeyTransform& transform, PairClass wanted) {
  const int64_t num_pairs = transform.head_dim / 2;
  std::vector<int64_t> pairs;
  for (int64_t p = 0; p < num_pairs; ++p) {
    for (int64_t head = 0; head < transform.num_kv_heads; ++head) {
      if (transform.pair_class[static_cast<size_t>(head * num_pairs + p)] != wanted) continue;
      pairs.push_back(p);
      break;
    }
  }
  return pairs;
}

// The removed components of one pair, zero where the head has the pair in another class. p < 0: padding.
BiasPair removed_pair(const KeyTransform& transform, int64_t head, int64_t p, PairClass wanted) {
  const int64_t num_pairs = transform.head_dim / 2;
  if (p < 0 || transform.pair_class[static_cast<size_t>(head * num_pairs + p)] != wanted) return {};
  const float* removed = transform.removed_of(head);
  return {removed[p], removed[p + num_pairs]};
}

void add_slow_pairs(const KeyTransform& transform, std::span<const double> frequencies, KeyBias& bias) {
  const auto num_pairs = static_cast<int64_t>(frequencies.size());
  const std::vector<int64_t> slow = pairs_of_class(transform, PairClass::kSlow);
  const int64_t first_slow = slow.empty() ? num_pairs : slow.front();
  bias.shape.slow_chunks = static_cast<int32_t>(std::max<int64_t>((num_pairs - first_slow + 31) / 32, 1));
  const int64_t first = num_pairs - 32 * bias.shape.slow_chunks;
  for (int64_t head = 0; head < transform.num_kv_heads; ++head) {
    for (int64_t p = first; p < num_pairs; ++p)
      bias.slow_pairs.push_back(removed_pair(transform, head, p, PairClass::kSlow));
  }
  for (int64_t p = first; p < num_pairs; ++p)
    bias.slow_freqs.push_back(p < 0 ? BiasFrequency{} : frequency_of(frequencies[static_cast<size_t>(p)]));
}

uint32_t pack_f16(double low, double high) {
  return f32_to_f16(static_cast<float>(low)) | static_cast<uint32_t>(f32_to_f16(static_cast<float>(high))) << 16;
}
double rounded_f16(double x) {
  return static_cast<double>(f16_to_f32(f32_to_f16(static_cast<float>(x))));
}

// One A fragment: rows are the slots of a page, columns cosine and sine of eight pairs (PTX ISA, fragments of
// mma.m16n8k16). `low` takes what FP16 leaves of each element.
std::array<uint32_t, 4> table_fragment(std::span<const double> radians, int64_t page, int64_t lane, bool low) {
  std::array<uint32_t, 4> words{};
  for (size_t word = 0; word < 4; ++word) {
    const int64_t slot = lane / 4 + 8 * static_cast<int64_t>(word % 2);
    const size_t pair = static_cast<size_t>(lane % 4) + 4 * (word / 2);
    const double angle = radians[pair] * static_cast<double>(page * kPageSize + slot);
    double cosine = kBiasUnit * std::cos(angle);
    double sine = kBiasUnit * std::sin(angle);
    if (low) {
      cosine -= rounded_f16(cosine);
      sine -= rounded_f16(sine);
    }
    words[word] = pack_f16(cosine, sine);
  }
  return words;
}

// Column k of a window's fragments. The polynomial of five terms is one k-step: powers of x times coefficients, each
// split into two FP16 numbers, as high * high, high * low and low * high (columns 0 to 4, 5 to 9, 10 to 14).
double power_column(double x, int64_t k) {
  if (k == kBiasTerms * 3) return 0.0;
  const double power = kBiasUnit * std::pow(x, static_cast<double>(k % kBiasTerms));
  return k < 2 * kBiasTerms ? rounded_f16(power) : power - rounded_f16(power);
}

void add_window_table(KeyBias& bias) {
  constexpr double kHalfWindow = kWindowPages * kPageSize / 2.0;
  for (int64_t page = 0; page < kWindowPages; ++page) {
    for (int64_t lane = 0; lane < 32; ++lane) {
      std::array<uint32_t, 4> words{};
      for (size_t word = 0; word < 4; ++word) {
        const int64_t slot = lane / 4 + 8 * static_cast<int64_t>(word % 2);
        const int64_t k = lane % 4 * 2 + 8 * static_cast<int64_t>(word / 2);
        const double x = static_cast<double>(page * kPageSize + slot) / kHalfWindow - 1.0;
        words[word] = pack_f16(power_column(x, k), power_column(x, k + 1));
      }
      bias.table.push_back(words);
    }
  }
}

void add_fast_pairs(const KeyTransform& transform, std::span<const double> frequencies, KeyBias& bias) {
  std::vector<int64_t> fast = pairs_of_class(transform, PairClass::kFast);
  const auto steps = (static_cast<int32_t>(fast.size()) + kBiasStepPairs - 1) / kBiasStepPairs;
  fast.resize(static_cast<size_t>(steps * kBiasStepPairs), -1);
  bias.shape.fast_steps = steps;
  bias.shape.table_shift = 3;  // eight pages; fewer where many steps would fill the SM's shared memory
  while (bias.shape.table_shift > 0 && bias.shape.fast_table_bytes() > kMaxFastTableBytes) --bias.shape.table_shift;
  std::vector<double> radians;
  for (const int64_t p : fast) radians.push_back(p < 0 ? 0.0 : frequencies[static_cast<size_t>(p)]);
  for (const double r : radians) bias.fast_freqs.push_back(frequency_of(r));
  for (int64_t head = 0; head < transform.num_kv_heads; ++head) {
    for (const int64_t p : fast) {
      const BiasPair removed = removed_pair(transform, head, p, PairClass::kFast);
      bias.fast_pairs.push_back({removed.low, removed.high, static_cast<int32_t>(std::max<int64_t>(p, 0)), 0});
    }
  }
  for (int32_t step = 0; step < steps; ++step) {
    const auto of_step = std::span(radians).subspan(static_cast<size_t>(step * kBiasStepPairs), kBiasStepPairs);
    for (int64_t page = 0; page < bias.shape.table_pages(); ++page) {
      for (const bool low : {false, true}) {
        for (int64_t lane = 0; lane < 32; ++lane) bias.table.push_back(table_fragment(of_step, page, lane, low));
      }
    }
  }
}

}  // namespace

KeyBias make_key_bias(const KeyTransform& transform, std::span<const double> frequencies) {
  const auto num_pairs = static_cast<int64_t>(frequencies.size());
  ASYMKV_CHECK(transform.head_dim == 2 * num_pairs, "{} frequencies for head dim {}", num_pairs, transform.head_dim);
  if (!std::ranges::is_sorted(frequencies, std::greater<>())) {
    throw_unsupported("pre-bias keys need RoPE frequencies that fall from pair to pair");
  }
  KeyBias bias;
  add_slow_pairs(transform, frequencies, bias);
  add_window_table(bias);
  add_fast_pairs(transform, frequencies, bias);
  return bias;
}

}  // namespace asymkv::cuda
