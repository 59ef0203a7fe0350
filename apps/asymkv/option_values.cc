#include "option_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string_view>

#include "asymkv/base/number.h"

namespace asymkv::app {
namespace {

// One decimal number, or nothing. A plus sign may stand in front.
template <typename Number>
std::optional<Number> parse_option_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  return parse_number<Number>(text);
}

// "1K" is a mistake worth a word: K would be 1,000 to one reader and 1,024 to the next.
template <typename Number>
std::string no_number(std::string_view text) {
  std::string complaint = fmt::format(
      "\"{}\" is no {}", text,
      !std::is_integral_v<Number>
          ? "number"
          : fmt::format("{}integer of {} bits", std::is_signed_v<Number> ? "" : "unsigned ", 8 * sizeof(Number)));
  const bool has_unit = text.size() > 1 && std::string_view("kKmMgG").find(text.back()) != std::string_view::npos;
  if (has_unit && parse_option_number<double>(text.substr(0, text.size() - 1))) {
    complaint += ": write all its digits, this option takes no unit";
  }
  return complaint;
}

// CLI11 takes a leading zero for octal, so it is given the digits without it.
template <typename Number>
CLI::Validator strict() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const std::optional<Number> number = parse_option_number<Number>(text);
        if (!number) return no_number<Number>(text);
        if constexpr (std::is_integral_v<Number>) text = std::to_string(*number);
        return {};
      },
      "");
}

CLI::Validator refuse_empty() {
  return CLI::Validator([](const std::string& text) { return text.empty() ? "must not be empty" : ""; }, "");
}

template <typename Element>
Element parse_element(const std::string& name, std::string_view text) {
  if (text.empty()) throw CLI::ValidationError(name, "an element of the list is empty");
  if constexpr (std::is_same_v<Element, std::string>) {
    return std::string(text);
  } else {
    const std::optional<Element> number = parse_option_number<Element>(text);
    if (!number) throw CLI::ValidationError(name, no_number<Element>(text));
    return *number;
  }
}

template <typename Element>
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<Element>& values,
                      const std::string& help) {
  const auto parse = [&values, name](const std::string& text) {
    values.clear();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      values.push_back(parse_element<Element>(name, std::string_view(text).substr(begin, end - begin)));
      begin = end + 1;
    }
  };
  CLI::Option* option = command.add_option_function<std::string>(name, parse, help)->type_name("LIST");
  if (!values.empty()) option->default_str(fmt::format("{}", fmt::join(values, ",")));
  return option;
}

}  // namespace

void read_values_strictly(CLI::App& root) {
  for (CLI::Option* option : root.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT")) option->transform(strict<int64_t>());
    if (type.starts_with("UINT")) option->transform(strict<uint64_t>());
    if (type.starts_with("FLOAT")) option->transform(strict<double>());
    const bool may_be_empty = option->check_lname("prompt") || option->check_lname("system");
    if (type.starts_with("TEXT") && !may_be_empty) option->check(refuse_empty());
  }
  for (CLI::App* command : root.get_subcommands({})) read_values_strictly(*command);
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int32_t>& values,
                             const std::string& help) {
  return add_list(command, name, values, help);
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<int64_t>& values,
                             const std::string& help) {
  return add_list(command, name, values, help);
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<double>& values,
                             const std::string& help) {
  return add_list(command, name, values, help);
}

CLI::Option* add_list_option(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                             const std::string& help) {
  return add_list(command, name, values, help);
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu, cuda (a Hopper GPU), or ref (double-precision oracle, slow)")
      ->capture_default_str();
}

}  // namespace asymkv::app
