#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/record/record.h"

namespace asymkv {

// Why a field stands between two performance rows.
enum class Unlike { kDiffers, kUnknown, kNotAttested };
std::string_view unlike_name(Unlike unlike);  // "differs", "unknown", "not_attested"

struct FieldDifference {
  std::string field;
  Unlike why = Unlike::kDiffers;
  std::string a;
  std::string b;
  bool operator==(const FieldDifference&) const = default;
};

struct RecordComparison {
  std::string varies;                        // the one thing compared; empty if nothing differs
  std::vector<FieldDifference> differences;  // of `varies` and of every other field
  std::vector<std::string> ignored;
  std::vector<std::string> refused;  // fields of `differences` that forbid the comparison
  bool comparable() const { return refused.empty(); }
};

struct RecordComparisonOptions {
  std::string varies;               // a field, or "format": keys and values together; empty: the one that differs
  std::vector<std::string> ignore;  // fields that the caller answers for
};

// What --varies and --ignore may name: "key", "value", "scale", ...
std::vector<std::string_view> comparison_fields();

// Whether measurements with these two records may stand side by side: all of engine, keys, values, scale scope,
// kernel family, query rounding, build, layout, transform, model, device and launch policy are equal but the one thing
// compared. Keys, values, model, device, kernels and build must be known and, for keys and values, attested on both
// sides: two unknowns are not equal. A scale, or a removed bias, that only one of two different formats has is part of
// that difference. Throws Error{kUsage} for a field that there is not.
RecordComparison compare_records(const Record& a, const Record& b, const RecordComparisonOptions& options);

// {"comparable", "varies", "differences": [{"field", "why", "a", "b"}], "ignored", "refused"}
// (schemas/record-comparison.schema.json).
Json record_comparison_to_json(const RecordComparison& comparison);
std::string render_record_comparison(const RecordComparison& comparison);

}  // namespace asymkv
