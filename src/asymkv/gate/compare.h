#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/gate/run_folder.h"
#include "asymkv/stats/sign_flip.h"

namespace asymkv {

// Direct paired tests between arms, of one run or of several: the only ground for saying that two candidates differ,
// since one that passes and one that does not are not thereby shown to.

// One side of a comparison. `run` must outlive it.
struct ComparedArm {
  std::string label;  // "SD" within one run, "DIR:SD" among several
  const Run* run = nullptr;
  ArmId arm = ArmId::kN;
};

// Family-wise error rate of the verdicts (Holm).
inline constexpr double kCompareAlpha = 0.05;

enum class PairTest : uint8_t { kMcNemar, kSignFlipExact, kSignFlipDrawn };
std::string_view pair_test_name(PairTest test);  // "mcnemar", "sign_flip_exact", "sign_flip_drawn"

// One panel of one pair of arms. Cases that failed or went unanswered in either arm are left out and counted.
struct ComparisonRow {
  std::string a;
  std::string b;
  std::string panel;
  PairTest test = PairTest::kMcNemar;
  int64_t n = 0;          // cases counted
  int64_t left_out = 0;   // failed in a or b, or not asked of both
  int64_t lost = 0;       // a correct, b wrong; loss: documents that b predicts worse
  int64_t gained = 0;     // a wrong, b correct; loss: documents that b predicts better
  double mean_delta = 0;  // loss: mean of b - a, nats per token
  stats::PValue p;
  stats::PValue p_holm;    // adjusted over all rows
  bool different = false;  // p_holm <= kCompareAlpha
};

struct CompareOptions {
  bool all_pairs = false;             // else the first arm against each of the others
  std::optional<PanelKind> family{};  // panels of this kind alone; else every panel
  stats::SignFlipOptions flips{};     // of the loss panels
};

// One row per pair and panel: exact McNemar for math and retrieval, paired sign-flip of the documents' losses, Holm
// over all rows. Pure. Throws Error{kUsage} for fewer than two arms, an arm given twice or missing in its run, and a
// family without a panel; Error{kBadInput}, naming both arms, the panel and the first case, unless both runs asked the
// same: equal cases, parser and generation limits. Between tokenizers equal ids and expected answers suffice for math;
// prediction losses, being per token, are refused.
std::vector<ComparisonRow> compare_arms(std::span<const ComparedArm> arms, const CompareOptions& options);

// {"family": ..., "alpha": ..., "rows": [{a, b, panel, test, n, left_out, lost, gained, mean_delta (loss only), p,
// log10_p, p_holm, log10_p_holm, verdict}]}; a p value below the range of a double is null, its log10 always holds.
Json comparison_to_json(std::span<const ComparisonRow> rows, const CompareOptions& options);
// A table and one sentence on how to read it; ends with a newline.
std::string render_comparison(std::span<const ComparisonRow> rows);

}  // namespace asymkv
