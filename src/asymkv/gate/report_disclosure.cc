#include <fmt/format.h>

#include <algorithm>

#include "asymkv/base/hash.h"
#include "asymkv/gate/report_html.h"
#include "asymkv/gate/report_sections.h"

// What went wrong, what the run cannot say, and where its numbers come from.
namespace asymkv::report_sections {
namespace {

using namespace report_html;  // NOLINT: the vocabulary of this file

struct PanelTally {
  int64_t cases = 0;
  int64_t failed = 0;
  int64_t truncated = 0;
  int64_t no_answer = 0;
  std::string first_failure;
};

PanelTally tally(const Run& run, size_t arm, const std::string& panel) {
  PanelTally result;
  for (const Outcome& outcome : run.outcomes[arm]) {
    if (outcome.panel != panel) continue;
    ++result.cases;
    result.failed += outcome.failed ? 1 : 0;
    result.truncated += outcome.truncated ? 1 : 0;
    result.no_answer += !outcome.failed && outcome.scored_tokens == 0 && outcome.parsed.empty() ? 1 : 0;
    if (outcome.failed && result.first_failure.empty()) result.first_failure = outcome.failure;
  }
  return result;
}

std::vector<std::string> panel_names(const Protocol& protocol) {
  std::vector<std::string> names;
  for (const RetrievalPanel& panel : protocol.retrieval) names.push_back(panel.name());
  if (protocol.math) names.push_back(protocol.math->name());
  for (const LossPanel& panel : protocol.loss) names.push_back(panel.name());
  return names;
}

std::string tallies(const Run& run) {
  Table table("Cases that failed, were cut off or held no answer",
              {"arm", "panel", "cases", "failed", "cut off at the token limit", "no answer found", "first failure"});
  int64_t rows = 0;
  for (size_t arm = 0; arm < run.arms.size(); ++arm) {
    for (const std::string& panel : panel_names(run.protocol)) {
      const PanelTally t = tally(run, arm, panel);
      if (t.failed + t.truncated + t.no_answer == 0) continue;
      ++rows;
      table.add_row({html_escape(arm_label(run.arms[arm])), html_escape(panel), grouped(t.cases), grouped(t.failed),
                     grouped(t.truncated), grouped(t.no_answer), isolated(t.first_failure)});
    }
  }
  if (rows == 0)
    return paragraph("No case failed, none was cut off by its token limit, and every answer could be read.");
  return "<p>A failed case is neither right nor wrong: it is left out of the counts, and its panel can then not pass. "
         "An "
         "answer that was cut off is judged as it stands.</p>\n" +
         table.html();
}

std::string uninformative(const ReportInputs& in) {
  std::string items;
  if (in.judgement.arms.empty()) return items;
  const ArmJudgement& first = in.judgement.arms.front();
  const auto add = [&items](std::string_view panel, const PanelPairs& pairs, double floor) {
    const double accuracy =
        pairs.counts.n > 0 ? static_cast<double>(pairs.control_correct) / static_cast<double>(pairs.counts.n) : 0;
    if (pairs.counts.n > 0 && accuracy >= floor) return;
    items += fmt::format(
        "<li>{}: native is right in {} ({}), below the floor of {}. A model that does not answer cannot lose "
        "an answer, so this panel is uninformative.</li>",
        html_escape(panel), part_of(pairs.control_correct, pairs.counts.n), percent(accuracy, 1), percent(floor, 0));
  };
  for (const RetrievalJudgement& panel : first.retrieval) add(panel.pairs.panel, panel.pairs, panel.native_floor);
  if (first.math) add(first.math->pairs.panel, first.math->pairs, first.math->native_floor);
  return items.empty() ? paragraph("Every panel is informative: native clears its floor.") : "<ul>" + items + "</ul>\n";
}

std::string cannot_say(const ReportInputs& in) {
  std::string items;
  if (in.run.protocol.retrieval.empty()) items += "<li>Retrieval was not tested.</li>";
  if (!in.run.protocol.math) items += "<li>Answers were not tested, so no objective can pass.</li>";
  if (in.run.protocol.loss.empty()) items += "<li>Prediction loss was not tested.</li>";
  if (in.run.protocol.path == RunPath::kReference) {
    items +=
        "<li>This run took the reference path, where every read goes through stored bytes. It does not qualify any "
        "serving worker.</li>";
  } else {
    items += "<li>It speaks of the worker path as it serves. Another chunk size or kernel is another worker.</li>";
  }
  items +=
      "<li>Speed, throughput and latency were not measured here.</li>"
      "<li>Two candidates were not compared with each other: each was compared with native. A difference between two "
      "verdicts is not a difference between two formats.</li>"
      "<li>Tasks other than the panels above, sampling instead of greedy decoding, and longer contexts were not "
      "tested.</li>";
  return "<h3>What this run cannot say</h3>\n<ul>" + items + "</ul>\n";
}

std::string words() {
  return "<h3>Words</h3>\n<dl class=\"kv\">"
         "<dt>pass</dt><dd>The bound clears the limit that was fixed before the run.</dd>"
         "<dt>not established</dt><dd>The evidence is insufficient: the bound does not clear the limit, and a loss "
         "beyond the "
         "limit is not shown either. With more cases it may go either way.</dd>"
         "<dt>degraded</dt><dd>The opposite bound shows a loss beyond the limit, on these cases and this path.</dd>"
         "<dt>uninformative</dt><dd>Native itself misses the floor, so the panel can show nothing.</dd>"
         "<dt>certified</dt><dd>A certifying protocol, and its deciding objective passes with retrieval and "
         "loss.</dd></dl>\n";
}

std::string repairs(const ReportInputs& in) {
  if (in.record.repairs.empty()) return paragraph("The run needed no repair of its files.");
  std::string items;
  for (const std::string& repair : in.record.repairs) items += fmt::format("<li>{}</li>", isolated(repair));
  return "<p>The run was resumed. What had not been finished was cut off and run again:</p>\n<ul>" + items + "</ul>\n";
}

std::string pretty(const Json& json) {
  return fmt::format("<pre>{}</pre>", html_escape(json.dump(2, ' ', false, Json::error_handler_t::replace)));
}

}  // namespace

std::string disclosure(const ReportInputs& in) {
  return section("disclosure", "Disclosure",
                 "<h3>Failures and truncations</h3>\n" + tallies(in.run) + "<h3>Uninformative panels</h3>\n" +
                     uninformative(in) + cannot_say(in) + words() + "<h3>Repairs</h3>\n" + repairs(in));
}

std::string provenance(const ReportInputs& in) {
  const RunIdentity& id = in.run.identity;
  std::string html = "<dl class=\"kv\">";
  const auto add = [&html](std::string_view name, const std::string& value) {
    html += fmt::format("<dt>{}</dt><dd>{}</dd>", name, value.empty() ? "none" : code(value));
  };
  add("Model", id.model);
  add("Weights SHA-256", id.model_sha256);
  add("Configuration SHA-256", id.config_sha256);
  add("Tokenizer SHA-256", id.tokenizer_sha256);
  add("Fixed scales SHA-256", id.scales_sha256);
  add("Build", id.build);
  add("Worker", id.worker);
  add("Native type", id.native_dtype);
  add("Protocol SHA-256", in.run.protocol_sha256);
  add("Record SHA-256", sha256_hex(admission_record_bytes(in.record)));
  add("Policy mode", std::string(policy_mode_name(in.policy.mode)));
  html += "</dl>\n" + details("Protocol, as hashed", pretty(protocol_to_json(in.run.protocol)));
  html += details("Provenance record: requested, resolved, allocated, launched",
                  pretty(admission_record_to_json(in.record)));
  return section("provenance", "Provenance", html);
}

}  // namespace asymkv::report_sections
