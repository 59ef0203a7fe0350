#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

namespace asymkv {

// Generator of the synthetic cases: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). Its numbers are part of every
// protocol that uses generated cases, so they never change; the standard library's distributions differ between
// implementations and are not used.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // An independent stream for one case of one panel, so that a case does not depend on how many there are.
  static Random for_case(uint64_t seed, std::string_view panel, int64_t case_idx) {
    uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (const char c : panel) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    Random seeds(Random(seed ^ hash).next() + static_cast<uint64_t>(case_idx) * kGamma);
    // A mixed number, not seeds' own state: states one step apart would give the same stream, shifted by one.
    return Random(seeds.next());
  }

  uint64_t next() {
    uint64_t z = (state_ += kGamma);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, count), count > 0; exactly uniform, by rejection.
  int64_t below(int64_t count) {
    const auto n = static_cast<uint64_t>(count);
    const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t x = next();
    while (x >= limit) x = next();
    return static_cast<int64_t>(x % n);
  }
  // Uniform in [low, high], both included.
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  // True in `parts` of `of` draws.
  bool chance(int64_t parts, int64_t of) { return below(of) < parts; }

  template <typename Range>
  const auto& choice(const Range& range) {
    return range[static_cast<size_t>(below(static_cast<int64_t>(std::size(range))))];
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ULL;
  uint64_t state_;
};

}  // namespace asymkv
