#include "stats_input.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/number.h"

namespace asymkv::app {
namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view separators, bool keep_empty) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (keep_empty || end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// log10 of "MANTISSAeEXPONENT" whose value a double cannot hold.
std::optional<double> parse_tiny_log10(std::string_view text) {
  const size_t e = text.find_first_of("eE");
  if (e == std::string_view::npos) return std::nullopt;
  const auto mantissa = parse_number<double>(text.substr(0, e));
  const auto exponent = parse_number<int64_t>(text.substr(e + 1));
  if (!mantissa || !exponent || !(*mantissa > 0.0) || !std::isfinite(*mantissa)) return std::nullopt;
  return std::log10(*mantissa) + static_cast<double>(*exponent);
}

stats::PValue parse_p_value(const std::string& text) {
  const std::optional<double> p = parse_number<double>(text);
  if (p && *p >= 0.0 && *p <= 1.0) return {*p, std::log10(*p)};
  if (const auto tiny = p ? std::nullopt : parse_tiny_log10(text); tiny && *tiny <= 0.0) {
    return {std::pow(10.0, *tiny), *tiny};
  }
  throw_usage("'{}' is no p value: give a number between 0 and 1, say 0.031 or 2.3e-361", text);
}

stats::PairedLoss parse_loss_pair(std::string_view native_text, std::string_view candidate_text,
                                  const std::string& place) {
  const auto native = parse_number<double>(native_text), candidate = parse_number<double>(candidate_text);
  if (!native || !(*native >= stats::kMinNativeLoss && *native <= stats::kMaxLoss)) {
    throw_bad_input("{}: the native loss must be a positive number of nats, but it is '{}'", place, native_text);
  }
  if (!candidate || !(*candidate >= 0.0 && *candidate <= stats::kMaxLoss)) {
    throw_bad_input("{}: the candidate loss must be a number of nats >= 0, but it is '{}'", place, candidate_text);
  }
  return {*native, *candidate};
}

stats::SpeedBlock parse_speed_block(std::string_view candidate_text, std::string_view control_text,
                                    const std::string& place) {
  const auto candidate = parse_number<double>(candidate_text), control = parse_number<double>(control_text);
  for (const auto& [rate, text] : {std::pair(candidate, candidate_text), std::pair(control, control_text)}) {
    if (!rate || !(*rate > 0.0 && std::isfinite(*rate))) {
      throw_bad_input("{}: a rate must be a positive number, but it is '{}'", place, text);
    }
  }
  return {*candidate, *control};
}

// The two fields of each line that is not empty, parsed with the line's place ("FILE:LINE"). `names` says what they
// are.
template <typename Pair>
std::vector<Pair> read_pairs(const std::filesystem::path& path, std::string_view names,
                             Pair (*parse)(std::string_view, std::string_view, const std::string&)) {
  const std::string text = read_text_file(path);
  std::vector<Pair> pairs;
  int64_t line_number = 0;
  for (const std::string_view line : split(text, "\n", true)) {
    ++line_number;
    const std::vector<std::string_view> fields = split(line, " \t\r", false);
    if (fields.empty()) continue;
    const std::string place = fmt::format("{}:{}", path.string(), line_number);
    if (fields.size() != 2) {
      throw_bad_input("{}: expected two numbers, '{}', but the line has {} fields", place, names, fields.size());
    }
    pairs.push_back(parse(fields[0], fields[1], place));
  }
  return pairs;
}

}  // namespace

void AlphaOptions::add_to(CLI::App& command) {
  CLI::Option* by_value =
      command.add_option("--alpha", alpha, "error probability of each one-sided bound (default 0.05)");
  command.add_option("--divisor", divisor, "alpha = 0.05 / divisor, the number of bounds judged together")
      ->excludes(by_value);
}

double AlphaOptions::value() const {
  if (divisor) {
    if (!(*divisor >= 1.0 && std::isfinite(*divisor))) {
      throw_usage("--divisor must be a number >= 1, but it is {}", *divisor);
    }
    return 0.05 / *divisor;
  }
  const double chosen = alpha.value_or(0.05);
  if (!(chosen > 0.0 && chosen < 0.5)) {
    throw_usage("--alpha must lie between 0 and 0.5 (both excluded), but it is {}", chosen);
  }
  return chosen;
}

void check_open_percent(std::string_view option, double value) {
  if (!(value > 0.0 && value < 100.0)) {
    throw_usage("{} must lie between 0 and 100 (both excluded), but it is {}", option, value);
  }
}

stats::PairedCounts parse_table(const std::string& text) {
  const std::vector<std::string_view> fields = split(text, ",", true);
  std::vector<int64_t> counts;
  for (const std::string_view field : fields) {
    const auto count = parse_number<int64_t>(field);
    if (!count || *count < 0 || *count > stats::kMaxCases) {
      throw_usage("--table: '{}' is no count; give four like 4,9,3,16", field);
    }
    counts.push_back(*count);
  }
  if (counts.size() != 4) throw_usage("--table needs four counts a,b,c,d, but '{}' has {}", text, counts.size());
  return {.n = counts[0] + counts[1] + counts[2] + counts[3], .lost = counts[2], .gained = counts[1]};
}

uint64_t parse_seed(const std::string& text) {
  const auto seed = parse_number<uint64_t>(text);
  if (!seed) throw_usage("--seed must be a whole number from 0 to 18446744073709551615, but it is '{}'", text);
  return *seed;
}

std::vector<stats::PValue> parse_p_values(const std::vector<std::string>& texts) {
  std::vector<stats::PValue> values;
  for (const std::string& text : texts) values.push_back(parse_p_value(text));
  return values;
}

std::vector<stats::PairedLoss> read_loss_pairs(const std::filesystem::path& path) {
  std::vector<stats::PairedLoss> pairs = read_pairs(path, "native candidate", parse_loss_pair);
  if (pairs.size() < 2) {
    throw_bad_input("{}: the bootstrap over documents needs at least 2 pairs, but the file has {}", path.string(),
                    pairs.size());
  }
  return pairs;
}

std::vector<stats::SpeedBlock> read_speed_blocks(const std::filesystem::path& path) {
  std::vector<stats::SpeedBlock> blocks = read_pairs(path, "candidate control", parse_speed_block);
  if (blocks.empty()) throw_bad_input("{}: the file has no block", path.string());
  return blocks;
}

Json p_number(const stats::PValue& value) {
  return value.p > 0.0 || std::isinf(value.log10_p) ? Json(value.p) : Json();
}

}  // namespace asymkv::app
