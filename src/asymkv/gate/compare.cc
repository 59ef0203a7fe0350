#include "asymkv/gate/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

// The cases of one panel of a run, and what one arm made of them.
struct PanelView {
  std::map<std::string, const Case*> cases;        // by id
  std::map<std::string, const Outcome*> outcomes;  // by case id
};

PanelView view_panel(const ComparedArm& side, const std::string& panel) {
  PanelView view;
  const Run& run = *side.run;
  for (const Case& asked : run.cases) {
    if (asked.panel == panel) view.cases[asked.id] = &asked;
  }
  const auto arm = std::ranges::find(run.arms, side.arm) - run.arms.begin();
  for (const Outcome& outcome : run.outcomes[static_cast<size_t>(arm)]) {
    if (outcome.panel == panel) view.outcomes[outcome.case_id] = &outcome;
  }
  return view;
}

struct PanelName {
  std::string name;
  PanelKind kind;
  bool operator==(const PanelName&) const = default;
};

std::vector<PanelName> panels_of(const Run& run, const std::optional<PanelKind>& family) {
  std::vector<PanelName> panels;
  const Protocol& protocol = run.protocol;
  for (const RetrievalPanel& panel : protocol.retrieval) panels.push_back({panel.name(), PanelKind::kRetrieval});
  if (protocol.math) panels.push_back({protocol.math->name(), PanelKind::kMath});
  for (const LossPanel& panel : protocol.loss) panels.push_back({panel.name(), PanelKind::kLoss});
  if (family) std::erase_if(panels, [&](const PanelName& panel) { return panel.kind != *family; });
  return panels;
}

std::string hint(const CompareOptions& options) {
  return options.family ? "" : "; --family takes the panels of one kind alone";
}

// Where the protocols of two runs ask the same question differently.
void check_settings(const ComparedArm& a, const ComparedArm& b, const PanelName& panel, const CompareOptions& options) {
  const auto refuse = [&](std::string_view what) {
    throw_bad_input("{} and {} cannot be compared in panel {}: their protocols differ in {}{}", a.label, b.label,
                    panel.name, what, hint(options));
  };
  const auto check_limits = [&](const GenerationLimits& x, const GenerationLimits& y) {
    if (x.token_limit != y.token_limit) refuse(fmt::format("token_limit ({}, {})", x.token_limit, y.token_limit));
    if (x.stops != y.stops) refuse("stops");
  };
  const Protocol &p = a.run->protocol, &q = b.run->protocol;
  if (panel.kind == PanelKind::kMath) {
    if (p.math->parser != q.math->parser) refuse("the parser");
    check_limits(p.math->generation, q.math->generation);
  } else if (panel.kind == PanelKind::kRetrieval) {
    const auto named = [&panel](const RetrievalPanel& other) { return other.name() == panel.name; };
    check_limits(std::ranges::find_if(p.retrieval, named)->generation,
                 std::ranges::find_if(q.retrieval, named)->generation);
  }
}

void check_cases(const ComparedArm& a, const ComparedArm& b, const PanelName& panel, const CompareOptions& options) {
  const PanelView x = view_panel(a, panel.name), y = view_panel(b, panel.name);
  const auto refuse = [&](const std::string& what) {
    throw_bad_input("{} and {} cannot be compared in panel {}: {}{}", a.label, b.label, panel.name, what,
                    hint(options));
  };
  const bool same_tokens = a.run->identity.tokenizer_sha256 == b.run->identity.tokenizer_sha256;
  if (panel.kind == PanelKind::kLoss && !same_tokens) {
    refuse("their tokenizers differ, so that a loss per token is another quantity");
  }
  if (x.cases.size() != y.cases.size()) refuse(fmt::format("{} and {} cases", x.cases.size(), y.cases.size()));
  const bool answers_suffice = panel.kind == PanelKind::kMath && !same_tokens;
  // By id: runs that look at different shares of their cases ask the same ones in another order.
  for (const auto& [id, one] : x.cases) {
    const auto found = y.cases.find(id);
    if (found == y.cases.end()) refuse(fmt::format("case {} is asked in {} alone", id, a.label));
    if (one->expected != found->second->expected) refuse(fmt::format("case {} expects another answer", id));
    if (!answers_suffice && *one != *found->second) refuse(fmt::format("case {} has another text", id));
  }
}

void check_pair(const ComparedArm& a, const ComparedArm& b, const CompareOptions& options) {
  if (a.run == b.run) return;
  const std::vector<PanelName> panels = panels_of(*a.run, options.family), others = panels_of(*b.run, options.family);
  const auto check_has = [&](const std::vector<PanelName>& have, const PanelName& panel, const ComparedArm& side) {
    if (std::ranges::find(have, panel) != have.end()) return;
    throw_bad_input("{} and {} cannot be compared: {} has no panel {}{}", a.label, b.label, side.label, panel.name,
                    hint(options));
  };
  for (const PanelName& panel : panels) check_has(others, panel, b);
  for (const PanelName& panel : others) check_has(panels, panel, a);
  for (const PanelName& panel : panels) {
    check_settings(a, b, panel, options);
    check_cases(a, b, panel, options);
  }
}

void check_arms(std::span<const ComparedArm> arms) {
  if (arms.size() < 2) throw_usage("a comparison needs two arms or more, but there is {}", arms.size());
  for (size_t i = 0; i < arms.size(); ++i) {
    const ComparedArm& side = arms[i];
    if (std::ranges::find(side.run->arms, side.arm) == side.run->arms.end()) {
      throw_usage("{}: the run has no arm {}; it has {}", side.label, arm_name(side.arm), join_arms(side.run->arms));
    }
    for (size_t j = 0; j < i; ++j) {
      if (arms[j].run == side.run && arms[j].arm == side.arm) {
        throw_usage("{} is given twice: an arm does not differ from itself", side.label);
      }
    }
  }
}

// Adds one answered pair to the counts.
void count_answers(const Outcome& a, const Outcome& b, ComparisonRow& row) {
  row.lost += a.correct && !b.correct ? 1 : 0;
  row.gained += !a.correct && b.correct ? 1 : 0;
}

void test_losses(std::span<const double> deltas, const CompareOptions& options, ComparisonRow& row) {
  row.test = PairTest::kSignFlipExact;
  row.p = {1.0, 0.0};
  if (deltas.empty()) return;
  const stats::SignFlip test = stats::sign_flip_test(deltas, options.flips);
  row.test = test.exact ? PairTest::kSignFlipExact : PairTest::kSignFlipDrawn;
  row.p = test.value;
  row.mean_delta = test.mean;
  row.lost = std::ranges::count_if(deltas, [](double delta) { return delta > 0.0; });
  row.gained = std::ranges::count_if(deltas, [](double delta) { return delta < 0.0; });
}

ComparisonRow compare_panel(const ComparedArm& a, const ComparedArm& b, const PanelName& panel,
                            const CompareOptions& options) {
  ComparisonRow row;
  row.a = a.label;
  row.b = b.label;
  row.panel = panel.name;
  const PanelView x = view_panel(a, panel.name), y = view_panel(b, panel.name);
  std::vector<double> deltas;
  for (const auto& [id, asked] : x.cases) {
    const auto one = x.outcomes.find(id);
    const auto other = y.outcomes.find(id);
    if (one == x.outcomes.end() || other == y.outcomes.end() || one->second->failed || other->second->failed) {
      ++row.left_out;
      continue;
    }
    ++row.n;
    if (panel.kind == PanelKind::kLoss) {
      deltas.push_back(other->second->nll - one->second->nll);
    } else {
      count_answers(*one->second, *other->second, row);
    }
  }
  if (panel.kind == PanelKind::kLoss) {
    test_losses(deltas, options, row);
  } else {
    row.p = stats::mcnemar_exact(row.lost, row.gained);
  }
  return row;
}

void adjust(std::vector<ComparisonRow>& rows) {
  std::vector<double> p, log10_p;
  for (const ComparisonRow& row : rows) {
    p.push_back(row.p.p);
    log10_p.push_back(row.p.log10_p);
  }
  const std::vector<double> adjusted = stats::holm(p), adjusted_log10 = stats::holm_log10(log10_p);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].p_holm = {adjusted[i], adjusted_log10[i]};
    rows[i].different = adjusted[i] <= kCompareAlpha;
  }
}

std::string_view family_name(const CompareOptions& options) {
  return options.family ? panel_kind_name(*options.family) : "all";
}

Json number_or_null(const stats::PValue& value) {
  return value.p > 0.0 ? Json(value.p) : Json();
}

}  // namespace

std::string_view pair_test_name(PairTest test) {
  switch (test) {
    case PairTest::kMcNemar:
      return "mcnemar";
    case PairTest::kSignFlipExact:
      return "sign_flip_exact";
    case PairTest::kSignFlipDrawn:
      return "sign_flip_drawn";
  }
  return "mcnemar";
}

std::vector<ComparisonRow> compare_arms(std::span<const ComparedArm> arms, const CompareOptions& options) {
  check_arms(arms);
  std::vector<ComparisonRow> rows;
  for (size_t i = 0; i < (options.all_pairs ? arms.size() - 1 : 1); ++i) {
    for (size_t j = i + 1; j < arms.size(); ++j) {
      check_pair(arms[i], arms[j], options);
      for (const PanelName& panel : panels_of(*arms[i].run, options.family)) {
        rows.push_back(compare_panel(arms[i], arms[j], panel, options));
      }
    }
  }
  if (rows.empty()) throw_usage("the run has no {} panel to compare", family_name(options));
  adjust(rows);
  return rows;
}

Json comparison_to_json(std::span<const ComparisonRow> rows, const CompareOptions& options) {
  Json list = Json::array();
  for (const ComparisonRow& row : rows) {
    Json json = {{"a", row.a},
                 {"b", row.b},
                 {"panel", row.panel},
                 {"test", pair_test_name(row.test)},
                 {"n", row.n},
                 {"left_out", row.left_out},
                 {"lost", row.lost},
                 {"gained", row.gained},
                 {"p", number_or_null(row.p)},
                 {"log10_p", row.p.log10_p},
                 {"p_holm", number_or_null(row.p_holm)},
                 {"log10_p_holm", row.p_holm.log10_p},
                 {"verdict", row.different ? "different" : "no_difference_shown"}};
    if (row.test != PairTest::kMcNemar) json["mean_delta"] = row.mean_delta;
    list.push_back(std::move(json));
  }
  return {{"family", family_name(options)}, {"alpha", kCompareAlpha}, {"rows", std::move(list)}};
}

std::string render_comparison(std::span<const ComparisonRow> rows) {
  size_t wide_a = 1, wide_b = 1, wide_panel = 5;
  int64_t left_out = 0;
  for (const ComparisonRow& row : rows) {
    wide_a = std::max(wide_a, row.a.size());
    wide_b = std::max(wide_b, row.b.size());
    wide_panel = std::max(wide_panel, row.panel.size());
    left_out += row.left_out;
  }
  std::string text =
      fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>6}  {:>6}  {:>6}  {:>10}  {:>10}  {:>10}  {}\n", "a", wide_a, "b", wide_b,
                  "panel", wide_panel, "n", "lost", "gained", "b - a", "p", "p (Holm)", "verdict");
  for (const ComparisonRow& row : rows) {
    const bool loss = row.test != PairTest::kMcNemar;
    const double percent =
        row.n == 0 ? 0.0 : 100.0 * static_cast<double>(row.gained - row.lost) / static_cast<double>(row.n);
    const std::string change = loss ? fmt::format("{:+.5f}", row.mean_delta) : fmt::format("{:+.2f} pp", percent);
    text +=
        fmt::format("{:<{}}  {:<{}}  {:<{}}  {:>6}  {:>6}  {:>6}  {:>10}  {:>10}  {:>10}  {}\n", row.a, wide_a, row.b,
                    wide_b, row.panel, wide_panel, row.n, row.lost, row.gained, change, stats::p_words(row.p),
                    stats::p_words(row.p_holm), row.different ? "different" : "no difference shown");
  }
  text += fmt::format(
      "\nlost: a right, b wrong (loss panels: documents that b predicts worse, b - a in nats per token). Exact "
      "McNemar; "
      "losses by paired sign flips.\nHolm over these {} rows at {}. No difference shown does not say that there is "
      "none.\n",
      rows.size(), kCompareAlpha);
  if (left_out > 0)
    text += fmt::format("{} pairs of answers were left out: failed or not asked in one arm.\n", left_out);
  return text;
}

}  // namespace asymkv
