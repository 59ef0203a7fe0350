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

// CLI11 takes a leading zero for octal, so it is given the digits without it.
template <typename Number>
CLI::Validator strict(const std::string& kind) {
  return CLI::Validator(
      [kind](std::string& text) -> std::string {
        const std::optional<Number> number = parse_option_number<Number>(text);
        if (!number) return fmt::format("\"{}\" is no {}", text, kind);
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
    if (!number) {
      const std::string kind =
          std::is_integral_v<Element> ? fmt::format("integer of {} bytes", sizeof(Element)) : "number";
      throw CLI::ValidationError(name, fmt::format("\"{}\" is no {}", text, kind));
    }
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
    if (type.starts_with("INT")) option->transform(strict<int64_t>("integer of 64 bits"));
    if (type.starts_with("UINT")) option->transform(strict<uint64_t>("unsigned integer of 64 bits"));
    if (type.starts_with("FLOAT")) option->transform(strict<double>("number"));
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
