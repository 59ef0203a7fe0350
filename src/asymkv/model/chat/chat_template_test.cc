#include "asymkv/model/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

using testing::HasSubstr;

std::string render(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate::parse(source, "t").render(variables, 0);
}

std::string error_of(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  try {
    const std::string text = render(source, variables);
    return "no error, rendered: " + text.substr(0, 200);
  } catch (const Error& e) {
    return std::string(error_code_name(e.code())) + ": " + e.what();
  }
}

TEST(ChatTemplate, NamesUnsupportedConstructsWithLineAndColumn) {
  EXPECT_THAT(error_of("a\n{{ x | wordwrap }}"),
              HasSubstr("unsupported: t: line 2, column 8: the filter \"wordwrap\""));
  EXPECT_THAT(error_of("{% if x is spicy %}{% endif %}"), HasSubstr("line 1, column 12: the test \"spicy\""));
  EXPECT_THAT(error_of("\n\n  {% include 'x' %}"), HasSubstr("line 3, column 6: the statement \"include\""));
  EXPECT_THAT(error_of("{{ f(*args) }}"), HasSubstr("line 1, column 6: \"*\" in a call"));
  EXPECT_THAT(error_of("{{ 'a'.format(1) }}"),
              HasSubstr("unsupported: t: line 1, column 8: the string method \"format\""));
  EXPECT_THAT(error_of("{% for x in y recursive %}{% endfor %}"), HasSubstr("unsupported"));
  EXPECT_THAT(error_of("{{ 99999999999999999999 }}"), HasSubstr("does not fit 64 bits"));
  EXPECT_EQ(render("{{ '<' | safe }}"), "<");
  EXPECT_EQ(render("{{ ('<' | safe) + '<' }}"), "<&lt;");  // as jinja2
  EXPECT_THAT(error_of("{{ '<' | safe | trim }}"), HasSubstr("unsupported"));
  EXPECT_THAT(error_of("{{ '%s' % 'a' }}"), HasSubstr("unsupported"));
}

TEST(ChatTemplate, NamesSyntaxErrors) {
  EXPECT_THAT(error_of("{% if x %}a"),
              HasSubstr("bad_input: t: line 1, column 11: the block that begins here has no \"endif\""));
  EXPECT_THAT(error_of("a {{ x"), HasSubstr("the tag has no end"));
  EXPECT_THAT(error_of("{# x"), HasSubstr("the comment has no end"));
  EXPECT_THAT(error_of("{{ 'x }}"), HasSubstr("the string has no end"));
  EXPECT_THAT(error_of("{{ (x] }}"), HasSubstr("unexpected \"]\""));
  EXPECT_THAT(error_of("{{ x ! }}"), HasSubstr("unexpected character \"!\""));
  EXPECT_THAT(error_of("{% endfor %}"), HasSubstr("unknown or misplaced statement \"endfor\""));
  EXPECT_THAT(error_of("{{ 1 + }}"), HasSubstr("expected an expression, found \"}}\""));
  EXPECT_THAT(error_of("{% raw %}x"), HasSubstr("the raw block has no end"));
  EXPECT_THAT(error_of("{% break %}"), HasSubstr("belong into a loop"));
}

TEST(ChatTemplate, NamesWhatIsUndefined) {
  EXPECT_THAT(error_of("{{ message.content }}"),
              HasSubstr("line 1, column 12: \"message\" is undefined, so it has no attribute \"content\""));
  EXPECT_THAT(error_of("{{ m.content + 'x' }}", {{"m", OrderedJson::object()}}),
              HasSubstr("the mapping has no \"content\", so \"+\" cannot use it"));
  EXPECT_THAT(error_of("{{ f(1) }}"), HasSubstr("\"f\" is undefined, so it cannot be called"));
  EXPECT_THAT(error_of("{{ 1 + 'x' }}"), HasSubstr("\"+\" does not work on a integer and a string"));
}

TEST(ChatTemplate, PassesTheTemplatesOwnRefusalOn) {
  EXPECT_THAT(error_of("{{ raise_exception('roles must alternate') }}"), HasSubstr("roles must alternate"));
}

TEST(ChatTemplate, HostileTemplatesMeetALimit) {
  EXPECT_THAT(error_of("{% for i in range(1000000000) %}x{% endfor %}"), HasSubstr("at most 100000 items"));
  EXPECT_THAT(error_of("{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}"),
              HasSubstr("more than 20000000 steps"));
  EXPECT_THAT(error_of("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), HasSubstr("levels"));
  EXPECT_THAT(
      error_of(
          "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
      HasSubstr("bytes of text"));
  EXPECT_THAT(error_of("{{ 'x' * 9999999999 }}"), HasSubstr("more than 20000000 steps"));
  EXPECT_THAT(error_of("{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("nested more than 64 deep"));
  // Shared parts, doubled sixty times.
  EXPECT_THAT(error_of("{% set ns = namespace(l=['x']) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% "
                       "endfor %}{{ ns.l }}"),
              HasSubstr("more than 20000000 steps"));
  EXPECT_THAT(error_of("{{ 2 ** 4611686018427387904 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ -9223372036854775807 - 2 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ 'abc'.replace('', 'x') }}"), HasSubstr("unsupported"));
}

TEST(ChatTemplate, HostileSyntaxMeetsALimit) {
  const auto repeat = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  EXPECT_THAT(error_of("{{ " + repeat("(", 100'000) + "1" + repeat(")", 100'000) + " }}"),
              HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of("{{ " + repeat("not ", 100'000) + "x }}"), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of("{{ " + repeat("-", 100'000) + "1 }}"), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of("{{ 1" + repeat(" + 1", 100'000) + " }}"), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of("{{ x" + repeat(".y", 100'000) + " }}"), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of("{{ x" + repeat(" | trim", 100'000) + " }}"), HasSubstr("nested more than 200 deep"));
  EXPECT_THAT(error_of(repeat("{% if x %}", 100'000)), HasSubstr("nested more than 100 deep"));
  EXPECT_THAT(error_of(repeat("x", (1 << 20) + 1)), HasSubstr("at most 1048576"));
  EXPECT_EQ(render("{{ 'a'" + repeat(" ~ 'a'", 1000) + " }}").size(), 1001U);
}

TEST(ChatTemplate, EveryPrefixOfATemplateParsesOrFailsCleanly) {
  const std::string source =
      "{%- macro f(a, b=1) -%}{{ a ~ b }}{%- endmacro -%}{# c #}{% for m in messages if m.x is not none %}"
      "{{- f(m['x'][1:2], b={'k': [1, 2.5e3, \"\\u00e9\"]}) | tojson(indent=2) }}{% else %}{% set ns.a = 1 %}{% endfor "
      "%}"
      "{% raw %}{{ x }}{% endraw %}{{ 'a' if x else 'b' }}";
  for (size_t size = 0; size <= source.size(); ++size) {
    try {
      ChatTemplate::parse(source.substr(0, size), "t");
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
    }
  }
}

TEST(ChatTemplate, RefusesWhatTheSandboxRefuses) {
  EXPECT_THAT(error_of("{% set x = [] %}{{ x.append(1) }}"), HasSubstr("must not change a list"));
  EXPECT_THAT(error_of("{{ m.update({}) }}", {{"m", OrderedJson::object()}}), HasSubstr("must not change a mapping"));
}

TEST(ChatTemplate, ACallerDoesNotOutliveItsBlock) {
  EXPECT_THAT(error_of("{% set ns = namespace() %}{% macro keep() %}{% set ns.c = caller %}{% endmacro %}"
                       "{% call keep() %}x{% endcall %}{{ ns.c() }}"),
              HasSubstr("after its block has ended"));
}

class LoadChatTemplate : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "load_chat_template";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void write(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::filesystem::path folder_;
};

TEST_F(LoadChatTemplate, FindsTheFileThenTheConfiguration) {
  EXPECT_FALSE(load_chat_template(folder_).has_value());
  write("tokenizer_config.json", R"({"chat_template": "from config"})");
  EXPECT_EQ(load_chat_template(folder_)->source(), "from config");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(load_chat_template(folder_)->source(), "d");
  write("chat_template.jinja", "from file");
  EXPECT_EQ(load_chat_template(folder_)->source(), "from file");
}

TEST_F(LoadChatTemplate, NamesAConfigurationOfAnotherForm) {
  write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THROW(load_chat_template(folder_), Error);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "t"}]})");
  EXPECT_THROW(load_chat_template(folder_), Error);
}

}  // namespace
}  // namespace asymkv
