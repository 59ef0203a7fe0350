// asymkv gate compare: direct paired tests between arms of finished runs.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/compare.h"
#include "command.h"

namespace asymkv::app {
namespace {

namespace fs = std::filesystem;

struct CompareCommandOptions {
  std::vector<std::string> sides;
  std::string family = "all";
  bool all_pairs = false;
  bool json = false;
};

// "DIR" or "DIR:ARM".
struct Side {
  std::string folder;
  std::string arm;  // empty: every candidate of the run
};

Side parse_side(const std::string& text) {
  if (text.empty()) throw_usage("a folder to compare has an empty name");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || fs::is_directory(text)) return {text, ""};
  if (colon == 0 || colon + 1 == text.size()) throw_usage("'{}' is no DIR:ARM, for example runs/a:SD", text);
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::optional<PanelKind> parse_family(const std::string& name) {
  if (name == "all") return std::nullopt;
  for (const PanelKind kind : {PanelKind::kMath, PanelKind::kRetrieval, PanelKind::kLoss}) {
    if (panel_kind_name(kind) == name) return kind;
  }
  throw_usage("--family must be all, math, retrieval or loss, but it is '{}'", name);
}

// The runs of all sides, each read once.
class Runs {
 public:
  // Throws Error{kBadInput} for a folder that does not verify.
  const Run& read(const std::string& folder) {
    const fs::path path = fs::weakly_canonical(folder);
    auto found = runs_.find(path);
    if (found == runs_.end()) {
      found = runs_.emplace(path, std::make_unique<Run>(read_verified_run(folder).run)).first;
    }
    return *found->second;
  }
  bool single() const { return runs_.size() == 1; }

 private:
  std::map<fs::path, std::unique_ptr<Run>> runs_;
};

std::vector<ComparedArm> read_sides(const std::vector<std::string>& texts, Runs& runs) {
  std::vector<ComparedArm> sides;
  for (const std::string& text : texts) {
    const Side side = parse_side(text);
    const Run& run = runs.read(side.folder);
    std::vector<ArmId> arms;
    if (!side.arm.empty()) {
      arms = {parse_arm(side.arm)};
    } else {
      std::ranges::copy_if(run.arms, std::back_inserter(arms), [](ArmId arm) { return !arm_is_control(arm); });
    }
    for (const ArmId arm : arms) sides.push_back({fmt::format("{}:{}", side.folder, arm_name(arm)), &run, arm});
  }
  if (runs.single()) {
    for (ComparedArm& side : sides) side.label = arm_name(side.arm);
  }
  return sides;
}

void print_sides(const std::vector<ComparedArm>& sides) {
  for (const ComparedArm& side : sides) {
    fmt::print("{}: {}, {}, {} path on {}, build {}\n", side.label, side.run->identity.model, arm_description(side.arm),
               run_path_name(side.run->protocol.path), side.run->identity.worker,
               side.run->identity.build.substr(0, 12));
  }
  fmt::print("\n");
}

int compare(const CompareCommandOptions& options) {
  CompareOptions how;
  how.all_pairs = options.all_pairs;
  how.family = parse_family(options.family);
  Runs runs;
  const std::vector<ComparedArm> sides = read_sides(options.sides, runs);
  const std::vector<ComparisonRow> rows = compare_arms(sides, how);
  if (options.json) {
    print_json(comparison_to_json(rows, how));
  } else {
    print_sides(sides);
    fmt::print("{}", render_comparison(rows));
  }
  return 0;
}

}  // namespace

void add_gate_compare_command(CLI::App& gate, Action& action) {
  auto options = std::make_shared<CompareCommandOptions>();
  CLI::App* command = gate.add_subcommand("compare", "direct paired tests between arms, of one run or of several");
  command->footer("Example: asymkv gate compare runs/robust:AD runs/robust:SD");
  command->add_option("SIDE", options->sides, "DIR or DIR:ARM of finished runs; without ARM every candidate of the run")
      ->required();
  command->add_option("--family", options->family, "panels tested together: all, math, retrieval or loss")
      ->capture_default_str();
  command->add_flag("--all-pairs", options->all_pairs, "every pair, not the first arm against each of the others");
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->callback([options, &action] { action = [options] { return compare(*options); }; });
}

}  // namespace asymkv::app
