#include "asymkv/gate/embedded_text.h"

#include <fmt/format.h>

#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/gate/embedded_words.h"

namespace asymkv {
namespace {

// The words of one sentence: its subject and object, and whatever else it asks for, drawn when asked.
class Clause {
 public:
  explicit Clause(Random& random) : r_(random) {
    const std::string mood = r_.chance(1, 2) ? std::string() : fmt::format("{} ", r_.choice(words::kMoods));
    who_ = fmt::format("the {}{}", mood, role());
    const std::string look = r_.chance(1, 2) ? std::string() : fmt::format("{} ", r_.choice(words::kObjectAdjectives));
    object_ = fmt::format("the {}{}", look, object_noun());
  }

  const std::string& who() const { return who_; }
  const std::string& object() const { return object_; }
  std::string_view role() { return r_.choice(words::kRoles); }
  std::string_view object_noun() { return r_.choice(words::kObjects); }
  std::string_view verb() { return r_.choice(words::kVerbs); }
  std::string_view adverb() { return r_.choice(words::kAdverbs); }
  std::string_view motion() { return r_.choice(words::kMotionVerbs); }
  std::string_view place() { return r_.choice(words::kPlaces); }
  std::string_view time() { return r_.choice(words::kTimes); }
  std::string_view says() { return r_.choice(words::kSayings); }
  std::string where() {
    const std::string_view preposition = r_.choice(words::kPrepositions);
    return fmt::format("{} {}", preposition, place());
  }

 private:
  Random& r_;
  std::string who_;
  std::string object_;
};

// fmt evaluates its arguments in an unspecified order, so every drawn word has its own statement: the text of a seed
// must not depend on the compiler.
std::string simple_sentence(Random& r, Clause& c, int64_t kind) {
  switch (kind) {
    case 0: {
      const auto verb = c.verb();
      return fmt::format("{} {} {} {}", c.who(), verb, c.object(), c.where());
    }
    case 1: {
      const auto time = c.time();
      return fmt::format("{}, {} {} {}", time, c.who(), c.verb(), c.object());
    }
    case 2: {
      const auto adverb = c.adverb(), verb = c.verb();
      return fmt::format("{} {} {} {} {}", c.who(), adverb, verb, c.object(), r.choice(words::kReasons));
    }
    case 3: {
      const auto weather = r.choice(words::kWeather), motion = c.motion();
      return fmt::format("{}, and {} {} to the {}", weather, c.who(), motion, c.place());
    }
    case 4: {
      const auto motion = c.motion(), adverb = c.adverb(), from = c.place();
      return fmt::format("{} {} {} from the {} to the {}", c.who(), motion, adverb, from, c.place());
    }
    default: {
      const auto says = c.says();
      return fmt::format("{} {} that {} was {}", c.who(), says, c.object(), c.where());
    }
  }
}

std::string longer_sentence(Random& r, Clause& c, int64_t kind) {
  switch (kind) {
    case 6: {
      const auto time = c.time(), role = c.role();
      return fmt::format("{}, {} and the {} {} {} together", time, c.who(), role, c.verb(), c.object());
    }
    case 7: {
      const int64_t count = r.between(10, 99);
      const auto object = c.object_noun(), place = c.place();
      return fmt::format("there were {} {}s in the {}, but {} {} only one", count, object, place, c.who(), c.verb());
    }
    case 8: {
      const auto verb = c.verb(), adverb = c.adverb(), motion = c.motion();
      return fmt::format("{} {} {} and {} {} to the {}", c.who(), verb, c.object(), adverb, motion, c.place());
    }
    case 9: {
      const int64_t year = r.between(1700, 1999);
      const auto verb = c.verb();
      return fmt::format("in {}, {} {} {} for the {}", year, c.who(), verb, c.object(), c.role());
    }
    case 10: {
      const auto place = c.place(), adjective = r.choice(words::kObjectAdjectives), verb = c.verb();
      return fmt::format("{} in the {} was {}, so {} {} it {}", c.object(), place, adjective, c.who(), verb, c.time());
    }
    default: {
      const std::string where = c.where();
      return fmt::format("did {} ever see {} {}? Nobody {} so", c.who(), c.object(), where, c.says());
    }
  }
}

bool is_held_out(int64_t adjective, int64_t noun) {
  return (7 * adjective + noun) % 10 == 0;
}

}  // namespace

std::string embedded_sentence(Random& random) {
  const int64_t kind = random.below(12);
  Clause clause(random);
  std::string text = kind < 6 ? simple_sentence(random, clause, kind) : longer_sentence(random, clause, kind);
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + (random.chance(8, 100) ? ".\n" : ". ");
}

std::vector<std::string> embedded_filler(Random& random, int64_t num_bytes) {
  ASYMKV_CHECK(num_bytes > 0, "{} bytes of filler", num_bytes);
  std::vector<std::string> sentences;
  int64_t total = 0;
  while (total < num_bytes) {
    sentences.push_back(embedded_sentence(random));
    total += static_cast<int64_t>(sentences.back().size());
  }
  // Less than one sentence is too much, but the first one may be shorter than the last.
  auto excess = static_cast<size_t>(total - num_bytes);
  while (excess >= sentences.front().size()) {
    excess -= sentences.front().size();
    sentences.erase(sentences.begin());
  }
  sentences.front().erase(0, excess);
  return sentences;
}

std::vector<std::string> embedded_names(Random& random, int64_t count, bool first_held_out) {
  std::vector<std::string> names;
  std::set<std::pair<int64_t, int64_t>> seen;
  while (std::ssize(names) < count) {
    const int64_t adjective = random.below(std::ssize(words::kAdjectives));
    const int64_t noun = random.below(std::ssize(words::kNouns));
    if (names.empty() && is_held_out(adjective, noun) != first_held_out) continue;
    if (!seen.emplace(adjective, noun).second) continue;
    names.push_back(fmt::format("{} {}", words::kAdjectives[static_cast<size_t>(adjective)],
                                words::kNouns[static_cast<size_t>(noun)]));
  }
  return names;
}

std::string embedded_code(Random& random) {
  return fmt::format("{}", random.between(10000, 99999));
}

std::string embedded_needle(const std::string& name, const std::string& code) {
  return fmt::format("The secret code for {} is {}. ", name, code);
}

std::string embedded_question(const std::string& name) {
  return fmt::format("\nQuestion: What is the secret code for {}? Answer: ", name);
}

}  // namespace asymkv
