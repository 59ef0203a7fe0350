#include "byte_size.h"

#include <optional>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/number.h"

namespace asymkv::app {
namespace {

constexpr std::pair<std::string_view, int64_t> kUnits[] = {{"KiB", int64_t{1} << 10},
                                                           {"MiB", int64_t{1} << 20},
                                                           {"GiB", int64_t{1} << 30},
                                                           {"TiB", int64_t{1} << 40},
                                                           {"kB", 1'000},
                                                           {"MB", 1'000'000},
                                                           {"GB", 1'000'000'000},
                                                           {"TB", 1'000'000'000'000},
                                                           {"B", 1}};

}  // namespace

int64_t parse_byte_size(std::string_view text, std::string_view option) {
  std::string_view number = text;
  int64_t unit = 1;
  for (const auto& [suffix, bytes] : kUnits) {
    if (!text.ends_with(suffix)) continue;
    number.remove_suffix(suffix.size());
    unit = bytes;
    break;
  }
  const std::optional<int64_t> count = parse_number<int64_t>(number);
  int64_t size = 0;
  if (!count || *count < 0 || __builtin_mul_overflow(*count, unit, &size)) {
    throw_usage(
        "{} {}: give a whole number of bytes below 2^63, with B, kB, MB, GB, TB, KiB, MiB, GiB, TiB or no unit, such "
        "as 40GiB",
        option, text);
  }
  return size;
}

std::string gib_text(int64_t bytes) {
  return fmt::format("{:.4f} GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
}

}  // namespace asymkv::app
