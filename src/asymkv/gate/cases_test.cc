#include "asymkv/gate/cases.h"

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/gate/embedded_cases.h"
#include "asymkv/gate/embedded_text.h"
#include "asymkv/gate/embedded_words.h"
#include "asymkv/gate/gsm8k.h"
#include "asymkv/gate/test_support.h"
#include "asymkv/gate/text_cases.h"
#include "asymkv/gate/word_problems.h"

namespace asymkv {
namespace {

using test::expect_error;

CaseTokenizer byte_tokenizer() {
  return {[](std::string_view text) { return std::ssize(text); }, true};
}

// About what a BPE does: one token a word, one a punctuation mark, digits one by one.
CaseTokenizer word_tokenizer() {
  return {[](std::string_view text) {
            int64_t tokens = 0;
            bool in_word = false;
            for (const char c : text) {
              const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
              if (letter ? !in_word : c != ' ') ++tokens;
              in_word = letter;
            }
            return tokens;
          },
          false};
}

// models/train/words.py is what the embedded models were trained on.
TEST(EmbeddedWords, AreThoseOfTheTraining) {
  const char* root = std::getenv("ASYMKV_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  std::istringstream in(read_text_file(std::filesystem::path(root) / "models/train/words.py"));
  std::string all;
  for (std::string word; in >> word;) all += word + " ";
  const auto expect_list = [&](const auto& list) {
    std::string joined;
    for (const std::string_view word : list) joined += std::string(word) + " ";
    joined.pop_back();
    EXPECT_THAT(all, testing::HasSubstr(joined));
  };
  expect_list(words::kAdjectives);
  expect_list(words::kNouns);
  expect_list(words::kRoles);
  expect_list(words::kMoods);
  expect_list(words::kVerbs);
  expect_list(words::kObjects);
  expect_list(words::kObjectAdjectives);
  expect_list(words::kPlaces);
  expect_list(words::kAdverbs);
  EXPECT_EQ(words::kAdjectives.size(), 64U);
  EXPECT_EQ(words::kNouns.size(), 64U);
}

// A seed's numbers are part of every protocol: they may not change with compiler or version.
TEST(Random, IsPinned) {
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafULL);  // reference value of SplitMix64
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4ULL);
  std::set<uint64_t> seen;
  for (int64_t i = 0; i < 50; ++i) {
    Random stream = Random::for_case(1, "math", i);
    for (int k = 0; k < 50; ++k) seen.insert(stream.next());
  }
  EXPECT_EQ(seen.size(), 2500U) << "the streams of two cases overlap";
  std::array<int64_t, 7> counts{};
  for (int i = 0; i < 70'000; ++i) ++counts[static_cast<size_t>(random.below(7))];
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 10'000.0, 500.0);
}

TEST(EmbeddedText, FillerHasExactlyTheBytesAskedFor) {
  for (int64_t bytes = 1; bytes < 400; ++bytes) {
    Random random(static_cast<uint64_t>(bytes));
    int64_t total = 0;
    for (const std::string& sentence : embedded_filler(random, bytes)) {
      EXPECT_FALSE(sentence.empty());
      total += std::ssize(sentence);
    }
    EXPECT_EQ(total, bytes);
  }
}

TEST(EmbeddedText, SentencesBeginAndEndLikeSentences) {
  Random random(1);
  const std::regex shape("[A-Z][a-z0-9 ,?A-Z]*\\.[ \n]");
  std::set<std::string> seen;
  for (int i = 0; i < 2000; ++i) {
    const std::string sentence = embedded_sentence(random);
    EXPECT_TRUE(std::regex_match(sentence, shape)) << sentence;
    seen.insert(sentence);
  }
  EXPECT_GT(seen.size(), 1980U);
}

std::vector<Case> builtin_cases() {
  return make_cases(builtin_protocol("builtin"), {}, byte_tokenizer());
}

TEST(EmbeddedCases, RetrievalHasTheTrainedShapeAndExactLength) {
  const Protocol protocol = builtin_protocol("builtin");
  const std::regex needle("The secret code for ([a-z]+ [a-z]+) is (\\d{5})\\. ");
  for (const RetrievalPanel& panel : protocol.retrieval) {
    std::set<std::string> contexts;
    std::vector<double> depths;
    for (const Case& value : make_embedded_retrieval(panel, protocol.seed)) {
      EXPECT_EQ(1 + std::ssize(value.context) + std::ssize(value.question) + 5, panel.length);
      EXPECT_EQ(value.length, panel.length);
      std::map<std::string, std::string> codes;
      for (std::sregex_iterator it(value.context.begin(), value.context.end(), needle), end; it != end; ++it) {
        codes[(*it)[1]] = (*it)[2];
        if ((*it)[2] == value.expected) {
          EXPECT_NEAR(value.depth, static_cast<double>(it->position()) / static_cast<double>(value.context.size()),
                      1e-12);
        }
      }
      ASSERT_EQ(std::ssize(codes), panel.distractors + 1);
      std::smatch match;
      ASSERT_TRUE(std::regex_match(value.question, match,
                                   std::regex("\nQuestion: What is the secret code for ([a-z ]+)\\? Answer: ")));
      EXPECT_EQ(codes.at(match[1]), value.expected);
      contexts.insert(value.context);
      depths.push_back(value.depth);
    }
    EXPECT_EQ(std::ssize(contexts), panel.count);
    EXPECT_LT(*std::ranges::min_element(depths), 0.1);
    EXPECT_GT(*std::ranges::max_element(depths), 0.9);
  }
}

TEST(EmbeddedCases, MoreCasesKeepTheFirstOnes) {
  RetrievalPanel panel = builtin_protocol("builtin").retrieval[0];
  panel.count = 22;
  const auto few = make_embedded_retrieval(panel, 5);
  panel.count = 44;
  const auto many = make_embedded_retrieval(panel, 5);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));
  EXPECT_NE(few[0].context, make_embedded_retrieval(panel, 6)[0].context);
}

// Works a solution through, as a reader would.
int64_t evaluate(const std::string& solution) {
  const std::regex step(" (\\d+) ([-+*/]) (\\d+) = (\\d+)\\.");
  int64_t last = -1;
  for (std::sregex_iterator it(solution.begin(), solution.end(), step), end; it != end; ++it) {
    const int64_t x = std::stoll((*it)[1]), y = std::stoll((*it)[3]);
    const std::string op = (*it)[2];
    if (op == "/") {
      EXPECT_EQ(x % y, 0) << solution;
    }
    last = op == "+" ? x + y : op == "-" ? x - y : op == "*" ? x * y : x / y;
    EXPECT_EQ(last, std::stoll((*it)[4])) << solution;
  }
  return last;
}

TEST(WordProblems, SolutionsAreRightAndFitTheTrainedLength) {
  Random random(3);
  std::set<std::string> openings;
  for (int i = 0; i < 3000; ++i) {
    const WordProblem problem = make_word_problem(random);
    EXPECT_LE(problem.prompt.size() + problem.solution.size(), 254U);
    EXPECT_TRUE(problem.prompt.starts_with("Question: "));
    EXPECT_TRUE(problem.prompt.ends_with("\nAnswer:"));
    EXPECT_EQ(evaluate(problem.solution), problem.answer) << problem.prompt << problem.solution;
    EXPECT_TRUE(problem.solution.ends_with(fmt::format("\n#### {}", problem.answer)));
    EXPECT_GE(problem.answer, 0);
  }
}

TEST(EmbeddedCases, EveryCaseIsDistinctAndRoundTrips) {
  const auto cases = builtin_cases();
  const Protocol p = builtin_protocol("builtin");
  EXPECT_EQ(std::ssize(cases), p.retrieval[0].count + p.retrieval[1].count + p.math->count + p.loss[0].documents);
  const test::TempFolder folder;
  const auto path = folder.write("cases.jsonl", cases_to_jsonl(cases));
  EXPECT_EQ(read_cases(path), cases);
  std::set<std::string> texts, ids;
  for (const Case& value : cases) {
    texts.insert(value.context + value.question);
    ids.insert(value.id);
    if (value.kind == PanelKind::kLoss) {
      EXPECT_EQ(std::ssize(value.context) + 1, value.length);
    }
  }
  EXPECT_EQ(texts.size(), cases.size());
  EXPECT_EQ(ids.size(), cases.size());
  // The same on every compiler and in every version: a certificate names its cases by this hash.
  EXPECT_EQ(sha256_hex(cases_to_jsonl(cases)), "96dea07a02bf6a08ffed310527d3652ea157c1a919671d4a8e8705a50a426c57");
}

TEST(EmbeddedCases, OtherTokenizersAreRefused) {
  expect_error([] { make_cases(builtin_protocol("builtin"), {}, word_tokenizer()); }, ErrorCode::kUnsupported,
               "has no BOS: use --protocol quick");
  CaseTokenizer words = word_tokenizer();
  words.has_bos = true;
  expect_error([&] { make_cases(builtin_protocol("builtin"), {}, words); }, ErrorCode::kUnsupported,
               "byte-level models, but this tokenizer makes");
}

TEST(CaseFile, BrokenFilesNameFileLineAndField) {
  const test::TempFolder folder;
  Case good = make_embedded_math(*builtin_protocol("builtin").math, 1)[0];
  const auto refuse = [&](const std::string& field, const Json& value, std::string_view words) {
    Json json = case_to_json(good);
    json[field] = value;
    const auto path = folder.write("cases.jsonl", canonical_json(json) + "\n");
    SCOPED_TRACE(field);
    expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, words);
    expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, "cases.jsonl:1");
  };
  refuse("id", "", "field \"id\" is empty");
  refuse("context", "", "field \"context\" is empty");
  refuse("kind", "quiz", "unknown panel kind \"quiz\"");
  refuse("kind", "loss", "field \"expected\" must be empty in a loss case");
  refuse("expected", "", "field \"expected\" is empty");
  refuse("scored_tokens", 4, "field \"scored_tokens\" must be 0 outside loss cases");
  refuse("depth", 1.5, "field \"depth\" must lie between 0 and 1");
  refuse("length", -1, "field \"length\" is negative");
  refuse("hint", "x", "unknown field \"hint\"");
  const std::string line = canonical_json(case_to_json(good)) + "\n";
  const auto path = folder.write("cases.jsonl", line + line);
  expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, "cases.jsonl:2: case math/0000 is repeated");
  folder.write("cases.jsonl", "");
  expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, "holds no case");
}

constexpr std::string_view kRows = R"({"question": "Two and two?", "answer": "2+2=<<2+2=4>>4 things\n#### 4"})"
                                   "\n"
                                   R"({"question": "A thousand?", "answer": "#### 1,000"})"
                                   "\n";

TEST(Gsm8k, ReadsQuestionsGoldAndExamples) {
  const test::TempFolder folder;
  const auto path = folder.write("test.jsonl", kRows);
  const auto rows = read_gsm8k(path, 2);
  EXPECT_EQ(rows[0].solution, "2+2=4 things\n#### 4");
  EXPECT_EQ(rows[0].gold, "4");
  EXPECT_EQ(rows[1].gold, "1000");
  EXPECT_EQ(gsm8k_few_shot(rows),
            "Question: Two and two?\nAnswer: 2+2=4 things\n#### 4\n\nQuestion: A thousand?\nAnswer: #### 1,000\n\n");
  EXPECT_EQ(read_gsm8k(path, 1).size(), 1U);
  expect_error([&] { read_gsm8k(path, 3); }, ErrorCode::kBadInput, "holds 2 questions, but the protocol asks for 3");
  folder.write("test.jsonl", "{\"question\": \"x\", \"answer\": \"no mark 4\"}\n");
  expect_error([&] { read_gsm8k(path, 1); }, ErrorCode::kBadInput, "test.jsonl:1: field \"answer\" has no number");
  folder.write("test.jsonl", "{\"question\": 3, \"answer\": \"#### 4\"}\n");
  expect_error([&] { read_gsm8k(path, 1); }, ErrorCode::kBadInput, "field \"question\" must be a string");
  folder.write("test.jsonl", "nonsense\n");
  expect_error([&] { read_gsm8k(path, 1); }, ErrorCode::kBadInput, "test.jsonl:1 is not valid JSON");
}

TEST(GenericRetrieval, FitsAnyTokenizer) {
  RetrievalPanel panel = builtin_protocol("quick").retrieval[0];
  for (const CaseTokenizer& tokenizer : {word_tokenizer(), byte_tokenizer()}) {
    if (tokenizer.has_bos) panel.length = 4096;
    Protocol protocol;
    protocol.retrieval = {panel};
    const auto cases = make_cases(protocol, {}, tokenizer);
    ASSERT_EQ(std::ssize(cases), panel.count);
    for (size_t i = 0; i < cases.size(); ++i) {
      const Case& value = cases[i];
      const int64_t tokens = (tokenizer.has_bos ? 1 : 0) + tokenizer.count(value.context) +
                             tokenizer.count(value.question) + tokenizer.count(" " + value.expected);
      EXPECT_EQ(value.length, tokens);
      EXPECT_LE(tokens, panel.length);
      EXPECT_GT(tokens, panel.length - (tokenizer.has_bos ? 200 : 40));
      EXPECT_EQ(value.expected.size(), 7U);
      EXPECT_EQ(value.context.find(value.expected), value.context.rfind(value.expected));
      const size_t needle = value.context.rfind("The access number", value.context.find(value.expected));
      EXPECT_NEAR(value.depth, static_cast<double>(needle) / static_cast<double>(value.context.size()), 1e-12);
      EXPECT_NEAR(value.depth, (static_cast<double>(i % 10) + 0.5) / 10.0, 0.1);
    }
  }
}

TEST(GenericRetrieval, UsesAFillerFileAndRefusesAShortOne) {
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 600; ++i) text += fmt::format("Line {} says little. And then \xe2\x82\xac more!\n", i);
  CaseFiles files;
  files.filler = folder.write("filler.txt", text);
  Protocol protocol;
  protocol.retrieval = {builtin_protocol("quick").retrieval[0]};
  protocol.retrieval[0].source = DataSource::kFile;
  const auto cases = make_cases(protocol, files, word_tokenizer());
  EXPECT_THAT(cases[0].context, testing::HasSubstr("says little."));
  EXPECT_NE(cases[0].context, cases[1].context);
  files.filler = folder.write("filler.txt", text.substr(0, 200));
  expect_error([&] { make_cases(protocol, files, word_tokenizer()); }, ErrorCode::kBadInput,
               "filler.txt is too short to fill 1024 tokens");
  files.filler = folder.write("filler.txt", "");
  expect_error([&] { make_cases(protocol, files, word_tokenizer()); }, ErrorCode::kBadInput, "holds no text");
  expect_error([&] { make_cases(protocol, {}, word_tokenizer()); }, ErrorCode::kUsage,
               "panel retrieval-1024 needs --filler FILE");
}

TEST(SplitSentences, KeepsEveryByte) {
  const std::string text = "One. Two! Three?\nFour and 1.5 more";
  const auto parts = split_sentences(text);
  EXPECT_THAT(parts, testing::ElementsAre("One. ", "Two! ", "Three?\n", "Four and 1.5 more"));
  EXPECT_TRUE(split_sentences("").empty());
}

TEST(TextLoss, DocumentsAreConsecutiveAndLongEnough) {
  const test::TempFolder folder;
  std::string a, b;
  for (int i = 0; i < 900; ++i) a += fmt::format("alpha{} ", i % 7 == 0 ? "\n" : "");
  for (int i = 0; i < 500; ++i) b += "beta ";
  CaseFiles files;
  files.loss_texts = {folder.write("a.txt", a), folder.write("b.txt", b)};
  LossPanel panel;
  panel.source = DataSource::kFile;
  panel.documents = 5;
  panel.document_tokens = 200;
  panel.scored_tokens = 100;
  const CaseTokenizer tokenizer = word_tokenizer();
  const auto cases = make_text_loss(panel, tokenizer, files.loss_texts);
  ASSERT_EQ(cases.size(), 5U);
  const std::string from_a = cases[0].context + cases[2].context + cases[4].context;
  EXPECT_TRUE(from_a == a.substr(0, from_a.size()));
  EXPECT_TRUE(cases[1].context.starts_with("beta"));
  for (const Case& value : cases) {
    EXPECT_GE(tokenizer.count(value.context), 200);
    EXPECT_LE(tokenizer.count(value.context), 201);
    EXPECT_EQ(value.length, 200);
  }
  expect_error([&] { make_text_loss(panel, tokenizer, {folder.write("c.txt", "caf\xe9 ")}); }, ErrorCode::kBadInput,
               "c.txt is not valid UTF-8 at byte 3");
  panel.documents = 8;  // 5 + 2 fit
  expect_error([&] { make_text_loss(panel, tokenizer, files.loss_texts); }, ErrorCode::kBadInput,
               "hold 7 documents of 200 tokens, but the protocol asks for 8");
}

TEST(ResolveData, FillsInAndChecksHashes) {
  const test::TempFolder folder;
  CaseFiles files;
  files.math_questions = folder.write("test.jsonl", kRows);
  files.math_few_shot = folder.write("train.jsonl", kRows);
  files.loss_texts = {folder.write("a.txt", "some text")};
  const Protocol quick = builtin_protocol("quick");
  const Protocol resolved = resolve_data(quick, files);
  EXPECT_THAT(resolved.math->data_sha256, testing::ElementsAre(sha256_hex(kRows), sha256_hex(kRows)));
  EXPECT_THAT(resolved.loss[0].data_sha256, testing::ElementsAre(sha256_hex(std::string_view("some text"))));
  EXPECT_NO_THROW(resolve_data(resolved, files));
  folder.write("a.txt", "some other text");
  expect_error([&] { resolve_data(resolved, files); }, ErrorCode::kBadInput,
               "panel loss-1024 of the protocol asks for");
  files.loss_texts.push_back(folder.write("b.txt", "more"));
  expect_error([&] { resolve_data(resolved, files); }, ErrorCode::kUsage, "names 1 data files, but 2 were given");
  files.loss_texts.clear();
  expect_error([&] { resolve_data(quick, files); }, ErrorCode::kUsage, "panel loss-1024 needs --loss-text FILE");
  files.math_few_shot.clear();
  expect_error([&] { resolve_data(quick, files); }, ErrorCode::kUsage, "needs --math-examples FILE");
}

CaseTokenizer chat_tokenizer() {
  CaseTokenizer tokenizer = word_tokenizer();
  tokenizer.chat_frame = [](const std::string& begin) {
    return std::pair("<|user|>\n" + begin, std::string("<|end|>\n<|assistant|>\n"));
  };
  return tokenizer;
}

Protocol chat_protocol() {
  Protocol protocol;
  protocol.math = builtin_protocol("quick").math;
  protocol.math->count = 2;
  protocol.math->few_shot = 0;
  protocol.math->prompt = MathPrompt::kChat;
  return protocol;
}

TEST(Gsm8kByChat, QuestionsAreUserTextBehindOneSharedContext) {
  const test::TempFolder folder;
  CaseFiles files;
  files.math_questions = folder.write("test.jsonl", kRows);
  const auto cases = make_cases(chat_protocol(), files, chat_tokenizer());
  ASSERT_EQ(cases.size(), 2U);
  for (const Case& value : cases) {
    EXPECT_EQ(value.context, "<|user|>\n" + std::string(kGsm8kInstruction));
    EXPECT_TRUE(value.question.ends_with("<|end|>\n<|assistant|>\n"));
    EXPECT_EQ(value.question.substr(static_cast<size_t>(value.user_bytes.value())), "<|end|>\n<|assistant|>\n");
  }
  EXPECT_EQ(cases[0].question.substr(0, static_cast<size_t>(*cases[0].user_bytes)), "Two and two?");
  EXPECT_EQ(cases[0].expected, "4");
  const auto path = folder.write("cases.jsonl", cases_to_jsonl(cases));
  EXPECT_EQ(read_cases(path), cases);
  for (const Json& bad : {Json(0), Json(1000), Json("all")}) {
    Json json = case_to_json(cases[0]);
    json["user_bytes"] = bad;
    folder.write("cases.jsonl", canonical_json(json) + "\n");
    expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, "user_bytes");
  }
  Json retrieval = case_to_json(cases[0]);
  retrieval["kind"] = "retrieval";
  folder.write("cases.jsonl", canonical_json(retrieval) + "\n");
  expect_error([&] { read_cases(path); }, ErrorCode::kBadInput, "\"user_bytes\" is for math cases by chat alone");
}

TEST(Gsm8kByChat, TheProtocolSaysSo) {
  Protocol protocol = builtin_protocol("quick");
  const Json before = protocol_to_json(protocol);
  EXPECT_FALSE(before["panels"]["math"].contains("prompt")) << "protocols of before keep their hash";
  protocol.math->few_shot = 0;
  protocol.math->prompt = MathPrompt::kChat;
  const Json json = protocol_to_json(protocol);
  EXPECT_EQ(json["panels"]["math"]["prompt"], "chat");
  EXPECT_EQ(protocol_from_json(json, "p").math->prompt, MathPrompt::kChat);
  const auto refuse = [](Protocol p, std::string_view words) {
    expect_error([&] { protocol_from_json(protocol_to_json(p), "p"); }, ErrorCode::kBadInput, words);
  };
  protocol.math->few_shot = 4;
  refuse(protocol, "\"panels.math.few_shot\" must be 0 where \"prompt\" is \"chat\"");
  protocol = builtin_protocol("builtin");
  protocol.math->prompt = MathPrompt::kChat;
  refuse(protocol, "\"panels.math.prompt\" must be \"few-shot\" for the builtin problems");
}

// Pieces cost more tokens alone than in one text, as the first word of a text does with most vocabularies.
TEST(GenericRetrieval, FillsThePromptUpAtAnyLength) {
  CaseTokenizer tokenizer = word_tokenizer();
  tokenizer.count = [count = tokenizer.count](std::string_view text) { return count(text) + 1; };
  const test::TempFolder folder;
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += fmt::format("Line {} says little, and then it says a good deal more of it.\n", i);
  CaseFiles files;
  files.filler = folder.write("filler.txt", text);
  Protocol protocol;
  protocol.retrieval = {builtin_protocol("quick").retrieval[0]};
  RetrievalPanel& panel = protocol.retrieval[0];
  panel.source = DataSource::kFile;
  panel.length = 30'720;
  panel.count = panel.depths = 40;
  std::set<int64_t> depths;
  for (const Case& value : make_cases(protocol, files, tokenizer)) {
    EXPECT_LE(value.length, panel.length);
    EXPECT_GT(value.length, panel.length - 400) << "2,000 are missing without a second filling";
    depths.insert(std::llround(value.depth * 40 - 0.5));
  }
  EXPECT_EQ(std::ssize(depths), 40);
}

}  // namespace
}  // namespace asymkv
