#include "asymkv/gate/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "asymkv/base/file.h"
#include "asymkv/gate/certificate_verify.h"
#include "asymkv/gate/judgement_testkit.h"
#include "asymkv/gate/report_html.h"

namespace asymkv {
namespace {

namespace fs = std::filesystem;
using gate_testkit::make_probe;
using gate_testkit::RunPlan;

const std::string kHostile = "<script>alert('1')</script> & \"\u202Emodel\x01";

FinishedRun finish(const RunPlan& plan, Fragility fragility, int64_t layers = 12) {
  return finish_run(gate_testkit::make_run(plan), make_probe(fragility, layers), {});
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Report, EscapesWhatHtmlWouldRead) {
  EXPECT_EQ(html_escape("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(html_escape(std::string("x\0y\x7f", 4)), "x\uFFFDy\uFFFD");
  EXPECT_EQ(html_escape("tab\tline\n\u00e9"), "tab\tline\n\u00e9");
}

TEST(Report, GroupsDigits) {
  using report_html::grouped;
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(30720), "30,720");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
}

TEST(Report, HostileTextsStayText) {
  RunPlan plan = gate_testkit::fragile_plan();
  plan.identity.model = plan.identity.worker = plan.identity.build = kHostile;
  plan.protocol.name = kHostile;
  plan.arms[ArmId::kSD].panels["math"].failed = 2;
  FinishedRun finished = finish(plan, Fragility::kFragile);
  finished.run.outcomes.back().back().failed = true;
  finished.run.outcomes.back().back().failure = kHostile;
  finished.record.repairs = {kHostile};
  const std::string html = render_report_html(finished.report_inputs());
  EXPECT_FALSE(contains(html, "<script"));
  EXPECT_FALSE(contains(html, "alert('1')"));
  EXPECT_TRUE(contains(html, "&lt;script&gt;alert(&#39;1&#39;)"));
  EXPECT_FALSE(contains(html, "\x01"));
}

TEST(Report, IsOneFileWithoutOutsideResources) {
  const std::string html =
      render_report_html(finish(gate_testkit::fragile_plan(), Fragility::kFragile).report_inputs());
  for (const std::string part : {"http:", "https:", "src=", "@import", "url(", "<link", "<script", "<iframe"}) {
    EXPECT_FALSE(contains(html, part)) << part;
  }
  EXPECT_FALSE(contains(html, "FP8 is safe"));
}

TEST(Report, EqualInputsGiveEqualBytes) {
  const auto render = [] {
    return render_report_html(finish(gate_testkit::fragile_plan(), Fragility::kFragile).report_inputs());
  };
  EXPECT_EQ(render(), render());
}

TEST(Report, SaysTheVerdictFirst) {
  const auto headline = [](const RunPlan& plan, Fragility fragility) {
    const std::string html = render_report_html(finish(plan, fragility).report_inputs());
    const size_t at = html.find("<h1>");
    return html.substr(at, html.find("</h1>") - at);
  };
  EXPECT_TRUE(contains(headline(gate_testkit::robust_plan(), Fragility::kRobust), "K8/V8 is admitted"));
  EXPECT_TRUE(contains(headline(gate_testkit::fragile_plan(), Fragility::kFragile), "K16/V8 is admitted"));
  RunPlan plan = gate_testkit::fragile_plan();
  plan.protocol.protocol_class = ProtocolClass::kScreening;
  EXPECT_TRUE(contains(headline(plan, Fragility::kFragile), "it is not certified"));
  EXPECT_TRUE(contains(headline(plan, Fragility::kUndecided), "Keep the native cache"));
}

TEST(Report, EmptyAndOddRunsAreServed) {
  RunPlan plan = gate_testkit::fragile_plan();
  plan.protocol.protocol_class = ProtocolClass::kScreening;
  plan.protocol.math.reset();
  plan.protocol.noise_floor = false;
  plan.protocol.retrieval.resize(1);
  plan.arms = {{ArmId::kSD, {{{"loss-1024", {.failed = 24}}, {"retrieval-1024", {.failed = 132}}}, 0}}};
  std::string html = render_report_html(finish(plan, Fragility::kUndecided, 1).report_inputs());
  EXPECT_TRUE(contains(html, "Answers were not tested"));
  EXPECT_TRUE(contains(html, "a logit was not finite"));
  plan.arms.clear();
  html = render_report_html(finish(plan, Fragility::kUndecided, 80).report_inputs());
  EXPECT_TRUE(contains(html, "Keep the native cache"));
  for (const std::string part : {">nan", " nan", "\"nan", "-nan", "inf&nbsp;"})
    EXPECT_FALSE(contains(html, part)) << part;
}

TEST(Report, FinishedRunComesBackFromItsFolder) {
  const fs::path folder = fs::path(testing::TempDir()) / "asymkv-report-folder";
  fs::remove_all(folder);
  RunPlan plan = gate_testkit::robust_plan();
  plan.mode = PolicyMode::kCertified;
  gate_testkit::write_finished_run(plan, Fragility::kRobust, folder);
  AdmissionRecord record = read_admission_record(folder);
  record.repairs = {"cut 3 bytes"};
  write_file_atomic(folder / "record.json", canonical_json(admission_record_to_json(record)));
  fs::remove(folder / "policy.json");  // the mode does not go with it
  const FinishedRun after = verify_run_folder(folder).finished.value();
  EXPECT_EQ(after.policy.tier, Tier::kK8V8);
  EXPECT_EQ(after.policy.mode, PolicyMode::kCertified);
  EXPECT_EQ(after.bytes_per_token.at(ArmId::kSD), gate_testkit::make_bytes().at(ArmId::kSD));
  const std::string html = render_report_html(after.report_inputs());
  EXPECT_TRUE(contains(html, "cut 3 bytes"));
  fs::remove_all(folder);
}

// --- in a real browser ---

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe && fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) text += buffer.data();
  return text;
}

class ReportInBrowser : public testing::Test {
 protected:
  void SetUp() override {
    browser_ = output_of("command -v chromium || command -v chromium-browser || command -v google-chrome");
    if (browser_.empty()) GTEST_SKIP() << "no Chromium is installed: the report was not opened in a browser";
    browser_.pop_back();
    const char* build = std::getenv("ASYMKV_BINARY_DIR");
    folder_ = (build != nullptr ? fs::path(build) : fs::path(testing::TempDir())) / "report_screenshots";
    fs::create_directories(folder_);
  }

  std::string run(const std::string& options, const fs::path& page) {
    return output_of(
        fmt::format("'{}' --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir='{}' {} "
                    "'file://{}' 2>/dev/null",
                    browser_, (folder_ / "profile").string(), options, fs::absolute(page).string()));
  }

  // Another page around the report, which it shows as a phone (light) and a desk (dark) would.
  fs::path write_frames(const std::string& name, const std::string& html) const {
    std::string page = "<!DOCTYPE html><html><body style=\"margin:0\">";
    for (const auto& [title, width, scheme] : {std::tuple("phone", 390, "light"), std::tuple("desk", 1280, "dark")}) {
      page += fmt::format(
          "<iframe title=\"{0}\" data-width=\"{1}\" data-scheme=\"{2}\" srcdoc=\"{3}\" style=\"width:{1}px;"
          "height:2400px;border:0;vertical-align:top;color-scheme:{2}\"></iframe>",
          title, width, scheme, html_escape(html));
    }
    const fs::path path = folder_ / name;
    write_file_atomic(path, page + "</body></html>");
    return path;
  }

  std::string browser_;
  fs::path folder_;
};

// The report with the checks of report_browser_check.js in it, which its own policy would not let run.
std::string with_checks(std::string html) {
  const std::string policy = "<meta http-equiv=\"Content-Security-Policy\"";
  const size_t begin = html.find(policy), end = html.find('>', begin);
  html.erase(begin, end + 1 - begin);
  const fs::path script = fs::path(std::getenv("ASYMKV_SOURCE_DIR")) / "src/asymkv/gate/report_browser_check.js";
  html.insert(html.find("</body>"), "<script>" + read_text_file(script) + "</script>");
  return html;
}

TEST_F(ReportInBrowser, OpensAndShowsItsSections) {
  RunPlan plan = gate_testkit::fragile_plan();
  plan.arms[ArmId::kN2].panels["math"] = {.lost = 1, .gained = 1};
  plan.arms[ArmId::kAD].panels["math"] = {.lost = 1};
  plan.arms[ArmId::kID].panels["math"].failed = 2;
  const fs::path page = folder_ / "fragile.html";
  const std::string html = render_report_html(finish(plan, Fragility::kFragile).report_inputs());
  write_file_atomic(page, html);
  const std::string dom = run("--dump-dom", page);
  for (const std::string part : {"<h1>K16/V8 is admitted", "id=\"chart-preservation-t\"", "id=\"chart-noise-t\"",
                                 "scope=\"row\"", "Needles lost by depth", "What this run cannot say", "</html>"}) {
    EXPECT_TRUE(contains(dom, part)) << part;
  }
  const fs::path shot = folder_ / "fragile.png";
  run(fmt::format("--screenshot='{}' --window-size=1280,2000", shot.string()), page);
  EXPECT_TRUE(fs::exists(shot) && fs::file_size(shot) > 20'000) << shot;
  const fs::path frames_shot = folder_ / "phone_and_dark.png";
  run(fmt::format("--screenshot='{}' --window-size=1680,2400", frames_shot.string()),
      write_frames("frames.html", html));
  EXPECT_TRUE(fs::exists(frames_shot) && fs::file_size(frames_shot) > 20'000) << frames_shot;
}

// Width, headings, tables, charts, links and contrast, as the browser sees them.
TEST_F(ReportInBrowser, FitsAPhoneAndReadsWellInTheDark) {
  RunPlan plan = gate_testkit::fragile_plan();
  plan.identity.model = std::string(120, 'm');  // a name without a place to break
  plan.arms[ArmId::kAD].panels["math"] = {.lost = 1};
  const std::string html = render_report_html(finish(plan, Fragility::kFragile, 80).report_inputs());
  const std::string dom = run("--dump-dom", write_frames("checked.html", with_checks(html)));
  const std::string none = "<pre class=\"problems\"></pre>";
  const size_t first = dom.find(none);
  ASSERT_NE(first, std::string::npos) << dom.substr(std::min(dom.size(), dom.find("<pre class")));
  EXPECT_NE(dom.find(none, first + 1), std::string::npos) << dom.substr(dom.find("<pre class"));
}

TEST_F(ReportInBrowser, HostileModelNameRunsNothing) {
  RunPlan plan = gate_testkit::robust_plan();
  plan.identity.model = "</title><script>document.title='owned'</script><img src=x onerror=alert(1)>";
  const fs::path page = folder_ / "hostile.html";
  write_file_atomic(page, render_report_html(finish(plan, Fragility::kRobust).report_inputs()));
  const std::string dom = run("--dump-dom", page);
  EXPECT_TRUE(contains(dom, "K8/V8 is admitted"));
  EXPECT_FALSE(contains(dom, "<script"));
  EXPECT_FALSE(contains(dom, "<img"));
  EXPECT_FALSE(contains(dom, "<title>owned"));
}

}  // namespace
}  // namespace asymkv
