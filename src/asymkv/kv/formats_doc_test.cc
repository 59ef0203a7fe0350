// The table of docs/formats.md is generated from the layout and diffed here. Write it again like the golden pages:
//   ASYMKV_REGENERATE_GOLDEN=1 ctest --test-dir build/release -R kv_golden_test
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "asymkv/base/file.h"
#include "asymkv/kv/layout.h"

namespace asymkv {
namespace {

constexpr std::string_view kBegin = "<!-- generated: formats -->\n";
constexpr std::string_view kEnd = "<!-- end of generated: formats -->\n";

struct Row {
  std::string_view alias;
  std::string_view arms;
  ScaleKind scale;
};

int64_t row_bytes(const KvFormat& format, int64_t head_dim) {
  return KvLayout({1, head_dim, head_dim, 1}, format).page_bytes().total();
}

std::string table() {
  const std::vector<Row> rows{{"native", "N", ScaleKind::kDynamic},        {"k16v8", "AF", ScaleKind::kFixed},
                              {"k16v8", "AD", ScaleKind::kDynamic},        {"k8v16", "RF", ScaleKind::kFixed},
                              {"k8v16", "RD", ScaleKind::kDynamic},        {"k8v8", "SF", ScaleKind::kFixed},
                              {"k8v8", "SD", ScaleKind::kDynamic},         {"k8v8-prebias", "PF", ScaleKind::kFixed},
                              {"k8v8-prebias", "PD", ScaleKind::kDynamic}, {"ki8v8", "ID", ScaleKind::kDynamic},
                              {"ki8v8-prebias", "JD", ScaleKind::kDynamic}};
  std::string text =
      "| `--kv` | arm | exact ids of a BF16 model | scales | bytes, head_dim 64 | bytes, head_dim 128 | capacity at "
      "128 |\n"
      "|---|---|---|---|---|---|---|\n";
  const KvFormat native = parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic);
  for (const Row& row : rows) {
    const KvFormat format = parse_kv_format(row.alias, DType::kBF16, row.scale);
    text += fmt::format("| `{}` | {} | `{}` | {} | {} | {} | {:.3f}x |\n", row.alias, row.arms, format.id(),
                        scale_kind_name(format.scale()), row_bytes(format, 64), row_bytes(format, 128),
                        static_cast<double>(row_bytes(native, 128)) / static_cast<double>(row_bytes(format, 128)));
  }
  return text;
}

TEST(FormatsDocument, TableIsTheLayouts) {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  const auto path = std::filesystem::path(source == nullptr ? "." : source) / "docs" / "formats.md";
  const std::string document = read_text_file(path);
  const size_t begin = document.find(kBegin);
  const size_t end = document.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos && begin < end) << path;
  const size_t from = begin + kBegin.size();
  if (std::getenv("ASYMKV_REGENERATE_GOLDEN") != nullptr) {
    write_file_atomic(path, document.substr(0, from) + table() + document.substr(end));
    return;
  }
  EXPECT_EQ(document.substr(from, end - from), table());
}

}  // namespace
}  // namespace asymkv
