// asymkv gate: print a protocol, write a run's report again, verify a run folder; compare is gate_compare_command.cc.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admission.h"
#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/looks.h"
#include "asymkv/gate/merge.h"
#include "asymkv/gate/report.h"
#include "asymkv/gate/run_files.h"
#include "command.h"
#include "run_record.h"

namespace asymkv::app {
namespace {

struct GateOptions {
  std::string protocol;
  std::filesystem::path folder;
  std::vector<std::filesystem::path> shards;
  std::string required_tier;
  bool json = false;
};

// "1 case", "2 cases", "2 mismatches".
std::string count_words(int64_t count, std::string_view unit) {
  const bool hisses = unit.ends_with('s') || unit.ends_with("ch") || unit.ends_with("sh") || unit.ends_with('x');
  return fmt::format("{} {}{}", count, unit, count == 1 ? "" : hisses ? "es" : "s");
}

// What looks save: the share of a panel's cases that a candidate is expected to take, by how much it really loses.
void print_saving(const Protocol& p, const std::string& panel, int64_t count, double limit) {
  std::string line = fmt::format("  {}: expected share of the cases asked:", panel);
  for (const double loss : {0.0, 0.5 * limit, limit, 2.0 * limit, 0.5}) {
    const auto expected = expect_panel(p, count, limit, loss);
    line += fmt::format(" {:.0f}% ({} {:.3g}%),", 100.0 * expected.cases_share, loss == 0.0 ? "losing" : "at",
                        100.0 * loss);
  }
  line.back() = '\n';
  fmt::print("{}", line);
}

void print_looks(const Protocol& p) {
  if (p.looks == Looks()) return;
  std::string line;
  const std::vector<double> levels = p.look_levels();
  for (size_t i = 0; i < levels.size(); ++i) {
    line += fmt::format("{} {:.3g}% of the cases at alpha {:.3g}", i == 0 ? "" : ",", 100.0 * p.looks.fractions[i],
                        levels[i]);
  }
  fmt::print("  looks ({}):{}\n", stats::spending_name(p.looks.spending), line);
  for (const RetrievalPanel& panel : p.retrieval) print_saving(p, panel.name(), panel.count, panel.limit);
  if (p.math) print_saving(p, p.math->name(), p.math->count, p.margins.preservation_limit);
}

void print_protocol_for_people(const Protocol& p) {
  fmt::print("{}: {}; decides by {}; alpha {} / {} = {:.4g} a bound\n", p.name, protocol_class_name(p.protocol_class),
             objective_name(p.objective), p.alpha, p.divisor, p.alpha_per_bound());
  fmt::print("  passes with lost answers <= {:.3g}%, net change >= {:.3g} pp, prediction loss <= {:+.3g}%\n",
             100.0 * p.margins.preservation_limit, 100.0 * p.margins.aggregate_margin, 100.0 * p.margins.loss_limit);
  for (const RetrievalPanel& panel : p.retrieval) {
    fmt::print("  {}: {} at {} depths, {} distractors, limit {:.3g}%, native floor {:.3g}%\n", panel.name(),
               count_words(panel.count, "case"), panel.depths, panel.distractors, 100.0 * panel.limit,
               100.0 * panel.native_floor);
  }
  if (p.math) {
    fmt::print("  math: {}, {} parser, native floor {:.3g}%\n", count_words(p.math->count, "question"),
               answer_parser_name(p.math->parser), 100.0 * p.math->native_floor);
  }
  for (const LossPanel& panel : p.loss) {
    fmt::print("  {}: {}, the last {} tokens of each scored\n", panel.name(), count_words(panel.documents, "document"),
               panel.scored_tokens);
  }
  print_looks(p);
  fmt::print("  {} path, {} prefill; arms {}{}\n", run_path_name(p.path), prefill_name(p.prefill),
             join_arms(p.default_arms), p.noise_floor ? "; native runs twice" : "");
  fmt::print("  SHA-256 {}\n", protocol_sha256(p));
}

int print_protocol(const GateOptions& options) {
  const Protocol protocol = load_protocol(options.protocol);
  if (options.json) {
    print_json(protocol_to_json(protocol));
  } else {
    print_protocol_for_people(protocol);
  }
  return 0;
}

int write_report(const GateOptions& options) {
  const FinishedRun finished = read_verified_run(options.folder);
  write_policy_and_report(finished, options.folder);
  const std::filesystem::path path = options.folder / run_files::kReport;
  if (options.json) {
    print_json({{"report", path.string()}, {"tier", tier_name(finished.policy.tier)}});
  } else {
    fmt::print("{}report: {}\n",
               render_table(finished.run, finished.judgement, finished.bytes_per_token, finished.policy),
               path.string());
  }
  return 0;
}

int verify(const GateOptions& options) {
  const Verification verification = verify_run_folder(options.folder, build_id());
  const std::vector<Mismatch>& mismatches = verification.mismatches;
  if (!verification.report_note.empty()) print_note("{}\n", verification.report_note);
  if (options.json) {
    print_json(mismatches_to_json(mismatches));
  } else if (mismatches.empty()) {
    fmt::print("ok: every count, bound, verdict and hash follows from the run's own files\n");
  } else {
    for (const Mismatch& mismatch : mismatches) {
      fmt::print("{}: ", mismatch.path);
      if (!mismatch.recorded.empty()) fmt::print("recorded {}, ", mismatch.recorded);
      fmt::print("recomputed: {}\n", mismatch.recomputed);
    }
    print_note("asymkv: {} in {}\n", count_words(std::ssize(mismatches), "mismatch"), options.folder.string());
  }
  return mismatches.empty() ? 0 : 1;
}

int merge(const GateOptions& options) {
  std::optional<Tier> required;
  if (!options.required_tier.empty()) required = parse_tier(options.required_tier);
  const AdmissionResult result = write_results(merge_shards(options.folder, options.shards), options.folder);
  if (options.json) {
    print_json(result_to_json(result));
  } else {
    print_result(result);
  }
  return require_tier(result, required);
}

}  // namespace

void add_gate_command(CLI::App& root, Action& action) {
  auto options = std::make_shared<GateOptions>();
  CLI::App* gate = root.add_subcommand("gate", "protocols, reports and the check of finished admission runs");
  gate->require_subcommand(1);
  gate->footer("Example: asymkv gate verify runs/robust");
  CLI::App* protocol = gate->add_subcommand("protocol", "print a protocol");
  protocol->footer("Example: asymkv gate protocol builtin --json");
  protocol
      ->add_option("NAME", options->protocol,
                   "built-in name (builtin, quick, three, worker4, reference7, ...) or a JSON file")
      ->required();
  protocol->add_flag("--json", options->json, "one JSON object: the protocol file itself");
  protocol->callback([options, &action] { action = [options] { return print_protocol(*options); }; });

  CLI::App* report =
      gate->add_subcommand("report", "write report.html and policy.json of a finished run again and print its table");
  report->footer("Example: asymkv gate report runs/robust");
  report->add_option("DIR", options->folder, "folder of the run")->required();
  report->add_flag("--json", options->json, "one JSON object on stdout");
  report->callback([options, &action] { action = [options] { return write_report(*options); }; });

  CLI::App* merge_command = gate->add_subcommand(
      "merge", "put the shards of one run of admit together and write its certificate, policy and report");
  merge_command->footer("Example: asymkv gate merge run-fragile shard-1 shard-2 shard-3");
  merge_command->add_option("OUT", options->folder, "folder of the merged run; must not hold anything")->required();
  merge_command->add_option("DIR", options->shards, "folders of all shards, in any order")->required();
  merge_command->add_option("--require", options->required_tier,
                            "exit 1 unless this tier was reached: K16/V8 or K8/V8");
  merge_command->add_flag("--json", options->json, "one JSON object on stdout, as admit --json");
  merge_command->callback([options, &action] { action = [options] { return merge(*options); }; });

  CLI::App* verify_command = gate->add_subcommand(
      "verify", "recompute every count, bound, verdict and hash of a run; exit code 1 if one does not follow");
  verify_command->footer("Example: asymkv gate verify runs/robust --json");
  verify_command->add_option("DIR", options->folder, "folder of the run")->required();
  verify_command->add_flag("--json", options->json, "one JSON object on stdout");
  verify_command->callback([options, &action] { action = [options] { return verify(*options); }; });
  add_gate_compare_command(*gate, action);
}

}  // namespace asymkv::app
