#include "asymkv/record/record_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace asymkv {
namespace {

constexpr std::string_view kUnknown = "unknown";
constexpr size_t kHashShown = 16;  // digits of a hash in the table; the JSON has all

std::string or_unknown(const std::string& text) {
  return text.empty() ? std::string(kUnknown) : shown(text);
}

std::string short_hash(const std::string& hash) {
  return or_unknown(hash.substr(0, kHashShown));
}

// The formats that the kernels of a side worked on.
std::string launched_formats(const SideFacts& side) {
  std::set<std::string> formats;
  for (const LaunchedKernel& kernel : side.launched) formats.insert(kernel.format);
  return formats.empty() ? std::string(kUnknown) : fmt::format("{}", fmt::join(formats, ", "));
}

template <typename Member>
std::string allocated_text(const SideFacts& side, Member member) {
  if (!side.allocated) return std::string(kUnknown);
  return fmt::format("{}", (*side.allocated).*member);
}

struct Row {
  std::string name;
  std::string key;
  std::string value;
};

std::vector<Row> fact_rows(const SideFacts& key, const SideFacts& value) {
  const auto allocated = [&](const char* name, auto member) {
    return Row{name, allocated_text(key, member), allocated_text(value, member)};
  };
  return {{"", "keys", "values"},
          {"requested", shown(key.requested.value_or("unset")), shown(value.requested.value_or("unset"))},
          {"resolved", shown(key.resolved.value_or("unknown")), shown(value.resolved.value_or("unknown"))},
          allocated("allocated", &AllocatedSide::format),
          allocated("  scale", &AllocatedSide::scale),
          allocated("  page bytes", &AllocatedSide::page_bytes),
          allocated("  scale bytes", &AllocatedSide::scale_bytes),
          allocated("  pool bytes", &AllocatedSide::payload_bytes),
          {"launched", launched_formats(key), launched_formats(value)},
          {"effective", key.effective(), value.effective()},
          {"", attestation(key), attestation(value)}};
}

std::string render_facts(const SideFacts& key, const SideFacts& value) {
  const std::vector<Row> rows = fact_rows(key, value);
  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.key.size());
  std::string text;
  for (const Row& row : rows) text += fmt::format("  {:13}  {:{}}  {}\n", row.name, row.key, width, row.value);
  return text;
}

std::string render_kernels(std::string_view side, const std::vector<LaunchedKernel>& kernels) {
  std::string text;
  for (const LaunchedKernel& kernel : kernels) {
    text += fmt::format("  {:13}  {} on {}, {} times, build {}\n", side, shown(kernel.instance), kernel.format,
                        kernel.count, short_hash(kernel.build));
    side = "";
  }
  return text;
}

std::string model_text(const Record::Model& model) {
  std::string text = or_unknown(model.id);
  if (!model.revision.empty()) text += fmt::format(", revision {}", shown(model.revision));
  if (!model.native_dtype.empty()) text += fmt::format(", native {}", model.native_dtype);
  if (!model.weights_sha256.empty()) text += fmt::format(", weights {}", short_hash(model.weights_sha256));
  return text;
}

std::string device_text(const Record::Device& device) {
  std::string text = device.kind.empty() ? or_unknown(device.name) : device.kind + " " + or_unknown(device.name);
  if (!device.compute_capability.empty())
    text += fmt::format(", compute capability {}", shown(device.compute_capability));
  if (!device.driver.empty()) text += fmt::format(", driver {}", shown(device.driver));
  if (!device.toolkit.empty()) text += fmt::format(", toolkit {}", shown(device.toolkit));
  return text;
}

std::string launch_text(const Record::Launch& launch) {
  const auto number = [](int64_t value) { return value == 0 ? std::string(kUnknown) : std::to_string(value); };
  return fmt::format("{}, batch {}, threads {}, split {}", launch.mode, number(launch.batch), number(launch.threads),
                     or_unknown(launch.split));
}

std::string with_hash(const std::string& word, const std::string& hash) {
  return hash.empty() ? word : fmt::format("{}, file {}", word, short_hash(hash));
}

// What an imported record has no word about: there these are defaults.
std::string render_run(const Record& record) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& what) {
    text += fmt::format("  {:13}  {}\n", name, what);
  };
  line("scales", with_hash(shown(record.scales.source), record.scales.sha256));
  line("transform", with_hash(record.transform.kind, record.transform.sha256));
  line("layout", fmt::format("{}, {} slots a page", or_unknown(record.layout.id), record.layout.page_size));
  if (!record.worker.empty()) line("worker", shown(record.worker));
  line("device", device_text(record.device));
  line("build", fmt::format("{}, compiler {}", short_hash(record.build.hash), or_unknown(record.build.compiler)));
  line("launch", launch_text(record.launch));
  if (!record.protocol_sha256.empty()) line("protocol", short_hash(record.protocol_sha256));
  line("arguments", short_hash(record.argv_sha256));
  return text;
}

}  // namespace

std::string shown(std::string_view text) {
  constexpr unsigned char kFirstPrintable = 0x20, kDelete = 0x7f;
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < kFirstPrintable || byte == kDelete ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return line;
}

std::string attestation(const SideFacts& side) {
  if (side.attested()) return "attested";
  if (!side.allocated) return "not attested: nothing says what was allocated";
  if (side.launched.empty()) return "not attested: nothing says which kernels ran";
  const auto other = std::ranges::find_if(
      side.launched, [&](const LaunchedKernel& kernel) { return kernel.format != side.allocated->format; });
  return fmt::format("not attested: {} worked on {}", shown(other->instance), other->format);
}

std::string render_record(const FoundRecord& found) {
  const Record& record = found.record;
  std::string text = fmt::format("{}{}{} {}\n", shown(found.at), found.at.empty() ? "" : ": ", shown(record.engine),
                                 record.engine_version.empty() ? "(version unknown)" : shown(record.engine_version));
  if (!record.imported_from.empty()) text += fmt::format("  {:13}  {}\n", "imported", record.imported_from);
  text += render_facts(record.key, record.value);
  text += render_kernels("keys", record.key.launched);
  text += render_kernels("values", record.value.launched);
  text += fmt::format("  {:13}  {}\n", "model", model_text(record.model));
  if (record.imported_from.empty()) text += render_run(record);
  text += fmt::format("  {:13}  {} to {}\n", "time", or_unknown(record.started), or_unknown(record.ended));
  return text;
}

std::string render_record_list(std::span<const FoundRecord> records) {
  size_t width = 0;
  for (const FoundRecord& found : records) width = std::max(width, found.at.size());
  std::string text;
  for (const FoundRecord& found : records) {
    const Record& record = found.record;
    const bool attested = record.key.attested() && record.value.attested();
    text += fmt::format("{:{}}  keys {}, values {}, {}\n", shown(found.at), width, record.key.effective(),
                        record.value.effective(), attested ? "attested" : "not attested");
  }
  return text;
}

}  // namespace asymkv
