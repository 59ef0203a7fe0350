// Templates rendered by jinja2 in transformers' environment (tests/golden/make_chat_goldens.py).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/model/chat/chat_template.h"

namespace asymkv {
namespace {

std::filesystem::path golden_file() {
  // Another file, to compare with templates that are not part of this repository.
  if (const char* named = std::getenv("ASYMKV_CHAT_GOLDENS")) return named;
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  return std::filesystem::path(source == nullptr ? "." : source) / "tests/golden/chat/goldens.json";
}

class ChatGolden : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "UTC", 1);
    goldens_ = OrderedJson::parse(read_text_file(golden_file()));
  }
  OrderedJson goldens_;
};

TEST_F(ChatGolden, RendersAsJinja2Does) {
  const auto now = goldens_.at("now").get<std::time_t>();
  std::map<std::string, ChatTemplate> templates;
  const auto folder = golden_file().parent_path() / goldens_.at("folder").get<std::string>();
  for (const OrderedJson& item : goldens_.at("templates")) {
    const auto name = item.get<std::string>();
    SCOPED_TRACE(name);
    try {
      templates.emplace(name, ChatTemplate::parse(read_text_file(folder / (name + ".jinja")), name));
    } catch (const Error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  int64_t rendered = 0;
  for (const OrderedJson& golden : goldens_.at("cases")) {
    const auto name = golden.at("template").get<std::string>();
    const auto context = golden.at("context").get<std::string>();
    SCOPED_TRACE(name + ", " + context);
    if (!templates.contains(name)) continue;
    try {
      const std::string text = templates.at(name).render(goldens_.at("contexts").at(context), now);
      ++rendered;
      if (golden.contains("error")) {
        ADD_FAILURE() << "jinja2 refuses: " << golden.at("error") << ", rendered here: " << text;
      } else {
        EXPECT_EQ(text, golden.at("text").get<std::string>());
      }
    } catch (const Error& e) {
      if (!golden.contains("error")) ADD_FAILURE() << e.what();
      if (golden.contains("raised")) {
        EXPECT_NE(std::string(e.what()).find(golden.at("raised").get<std::string>()), std::string::npos) << e.what();
      }
    }
  }
  EXPECT_GE(rendered, goldens_.at("rendered").get<int64_t>());
}

}  // namespace
}  // namespace asymkv
