#include "asymkv/record/record_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "asymkv/base/error.h"
#include "asymkv/record/record_table.h"

namespace asymkv {
namespace {

constexpr std::string_view kUnknown = "unknown";
constexpr std::string_view kNothing = "none";
constexpr std::string_view kBoth = "format";  // keys and values together
// In the order in which they are reported.
constexpr std::array<std::string_view, 12> kFields = {"engine", "key",    "value",     "scale", "kernel", "query",
                                                      "build",  "layout", "transform", "model", "device", "launch"};

std::string joined(const std::set<std::string>& parts, std::string_view nothing) {
  return parts.empty() ? std::string(nothing) : fmt::format("{}", fmt::join(parts, ", "));
}

// Texts that are there, in a row; what is missing on both sides makes no difference.
std::string listed(std::initializer_list<std::string> parts) {
  std::string list;
  for (const std::string& part : parts) {
    if (!part.empty()) list += (list.empty() ? "" : ", ") + part;
  }
  return list.empty() ? std::string(kUnknown) : list;
}

// Scales of the sides whose formats are the same, and where they come from.
std::string scale_scope(const Record& record, const Record& other) {
  std::string scope;
  const auto add = [&](std::string_view name, const SideFacts& side, const SideFacts& across) {
    if (!side.allocated || !across.allocated) return;
    const bool own = side.allocated->scale == kNothing || across.allocated->scale == kNothing;
    if (own && side.allocated->format != across.allocated->format) return;
    if (side.allocated->scale != kNothing) scope += fmt::format("{} {}, ", name, side.allocated->scale);
  };
  add("keys", record.key, other.key);
  add("values", record.value, other.value);
  if (scope.empty()) return std::string(kNothing);
  scope += fmt::format("from {}", record.scales.source);
  return record.scales.sha256.empty() ? scope : fmt::format("{} {}", scope, record.scales.sha256);
}

bool stores_prebias(const Record& record) {
  return record.key.effective().ends_with("-prebias");
}

std::string transform_text(const Record& record, const Record& other) {
  if (stores_prebias(record) != stores_prebias(other)) return "as the key formats ask";
  return record.transform.sha256.empty() ? record.transform.kind
                                         : fmt::format("{} {}", record.transform.kind, record.transform.sha256);
}

template <typename Part>
std::string of_kernels(const Record& record, const Part& part, std::string_view nothing) {
  std::set<std::string> parts;
  for (const SideFacts* side : {&record.key, &record.value}) {
    for (const LaunchedKernel& kernel : side->launched) parts.insert(part(kernel));
  }
  return joined(parts, nothing);
}

std::string kernel_text(const Record& record) {
  const std::string families = of_kernels(
      record, [](const LaunchedKernel& kernel) { return kernel.family; }, "");
  return listed({families, record.worker});
}

std::string model_text(const Record& record, const Record& other) {
  const Record::Model& model = record.model;
  // Equal weights are the same model under any name; without both hashes the names must do.
  const bool hashed = !model.weights_sha256.empty() && !other.model.weights_sha256.empty();
  if (hashed) return listed({model.weights_sha256, model.config_sha256, model.native_dtype});
  return listed({model.id, model.revision, model.weights_sha256, model.native_dtype});
}

std::string field_text(std::string_view field, const Record& record, const Record& other) {
  if (field == "engine") return record.engine;
  if (field == "key") return record.key.effective();
  if (field == "value") return record.value.effective();
  if (field == "scale") return scale_scope(record, other);
  if (field == "kernel") return kernel_text(record);
  if (field == "query") {
    return of_kernels(
        record, [](const LaunchedKernel& k) { return std::string(launch_query(k.instance)); }, "native");
  }
  if (field == "build") return listed({record.engine_version, record.build.hash, record.build.compiler});
  if (field == "layout") return fmt::format("{}, page {}", listed({record.layout.id}), record.layout.page_size);
  if (field == "transform") return transform_text(record, other);
  if (field == "model") return model_text(record, other);
  const Record::Device& device = record.device;
  if (field == "device") {
    return listed({device.kind, device.name, device.driver, device.toolkit, device.compute_capability});
  }
  ASYMKV_CHECK(field == "launch", "no text for the field {}", field);
  const Record::Launch& launch = record.launch;
  if (launch.mode == kUnknown) return std::string(kUnknown);
  return fmt::format("{}, batch {}, {} threads, split {}", launch.mode, launch.batch, launch.threads,
                     listed({launch.split}));
}

// A side whose format no kernel bears out stands in no table, whatever the other record says.
Unlike judge(std::string_view field, const Record& record, const std::string& text) {
  if (text == kUnknown) return Unlike::kUnknown;
  if (field == "key" && !record.key.attested()) return Unlike::kNotAttested;
  if (field == "value" && !record.value.attested()) return Unlike::kNotAttested;
  return Unlike::kDiffers;
}

std::string explained(std::string_view field, const Record& record, const std::string& text) {
  if (field != "key" && field != "value") return text;
  return fmt::format("{}, {}", text, attestation(field == "key" ? record.key : record.value));
}

std::vector<FieldDifference> find_differences(const Record& a, const Record& b) {
  std::vector<FieldDifference> differences;
  for (const std::string_view field : kFields) {
    const std::string in_a = field_text(field, a, b), in_b = field_text(field, b, a);
    const Unlike why = std::max(judge(field, a, in_a), judge(field, b, in_b));
    if (why == Unlike::kDiffers && in_a == in_b) continue;
    differences.push_back({std::string(field), why, explained(field, a, in_a), explained(field, b, in_b)});
  }
  return differences;
}

void check_field(std::string_view option, const std::string& field, bool may_be_both) {
  if (std::ranges::find(kFields, field) != kFields.end() || (may_be_both && field == kBoth)) return;
  throw_usage("{} \"{}\" is no field of a comparison; known: {}{}", option, field, fmt::join(kFields, " "),
              may_be_both ? " format" : "");
}

// The one thing that differs; empty if it is none, or more.
std::string only_difference(const std::vector<FieldDifference>& differences) {
  return differences.size() == 1 && differences[0].why == Unlike::kDiffers ? differences[0].field : "";
}

bool is_varied(const FieldDifference& difference, const std::string& varies) {
  if (difference.why != Unlike::kDiffers) return false;
  if (varies == kBoth) return difference.field == "key" || difference.field == "value";
  return difference.field == varies;
}

}  // namespace

std::string_view unlike_name(Unlike unlike) {
  constexpr std::array<std::string_view, 3> kNames = {"differs", "unknown", "not_attested"};
  return kNames[static_cast<size_t>(unlike)];
}

std::vector<std::string_view> comparison_fields() {
  return {kFields.begin(), kFields.end()};
}

RecordComparison compare_records(const Record& a, const Record& b, const RecordComparisonOptions& options) {
  if (!options.varies.empty()) check_field("--varies", options.varies, true);
  for (const std::string& field : options.ignore) {
    check_field("--ignore", field, false);
    const bool compared = field == options.varies || (options.varies == kBoth && (field == "key" || field == "value"));
    if (compared) throw_usage("--ignore {} takes away what --varies {} compares", field, options.varies);
  }
  RecordComparison comparison;
  comparison.ignored = options.ignore;
  comparison.differences = find_differences(a, b);
  std::erase_if(comparison.differences, [&](const FieldDifference& difference) {
    return std::ranges::find(options.ignore, difference.field) != options.ignore.end();
  });
  comparison.varies = options.varies.empty() ? only_difference(comparison.differences) : options.varies;
  for (const FieldDifference& difference : comparison.differences) {
    if (!is_varied(difference, comparison.varies)) comparison.refused.push_back(difference.field);
  }
  return comparison;
}

Json record_comparison_to_json(const RecordComparison& comparison) {
  Json differences = Json::array();
  for (const FieldDifference& difference : comparison.differences) {
    differences.push_back(
        {{"field", difference.field}, {"why", unlike_name(difference.why)}, {"a", difference.a}, {"b", difference.b}});
  }
  return {{"comparable", comparison.comparable()},
          {"varies", comparison.varies.empty() ? Json() : Json(comparison.varies)},
          {"differences", std::move(differences)},
          {"ignored", comparison.ignored},
          {"refused", comparison.refused}};
}

std::string render_record_comparison(const RecordComparison& comparison) {
  std::string text;
  for (const FieldDifference& difference : comparison.differences) {
    text += fmt::format("{:10} {}\n           {}\n", difference.field, difference.a, difference.b);
  }
  if (!comparison.ignored.empty()) text += fmt::format("ignored: {}\n", fmt::join(comparison.ignored, ", "));
  if (!comparison.comparable()) {
    return text + fmt::format("not comparable: {}\n", fmt::join(comparison.refused, ", "));
  }
  return text + (comparison.varies.empty()
                     ? fmt::format("comparable: nothing{} differs\n", comparison.ignored.empty() ? "" : " else")
                     : fmt::format("comparable: {} is what differs\n", comparison.varies));
}

}  // namespace asymkv
