#include "asymkv/gate/word_problems.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/gate/embedded_words.h"

namespace asymkv {
namespace {

constexpr size_t kMaxTrainedBytes = 254;

struct Step {
  int64_t left;
  char op;
  int64_t right;
};

int64_t result_of(const Step& step) {
  switch (step.op) {
    case '+':
      return step.left + step.right;
    case '-':
      return step.left - step.right;
    case '*':
      return step.left * step.right;
    default:
      return step.left / step.right;
  }
}

struct Draft {
  std::string text;
  std::vector<Step> steps;
};

// Who and what a problem is about.
struct Cast {
  std::string_view a, b;   // two people
  std::string_view he;     // pronoun of a
  std::string he_capital;  // the same at the start of a sentence
  std::string_view items;  // "apples"
};

Cast draw_cast(Random& r) {
  const int64_t first = r.below(std::ssize(words::kPeople));
  int64_t second = r.below(std::ssize(words::kPeople) - 1);
  if (second >= first) ++second;
  const words::Person& a = words::kPeople[static_cast<size_t>(first)];
  Cast cast{a.name, words::kPeople[static_cast<size_t>(second)].name, a.pronoun, std::string(a.pronoun),
            r.choice(words::kItems)};
  cast.he_capital[0] = a.pronoun == "he" ? 'H' : 'S';
  return cast;
}

void add_multiply(Random& r, const Cast& c, int64_t& value, Draft& draft) {
  const int64_t factor = r.between(2, 3);
  draft.text += fmt::format(" Then {} {} the number of {}.", c.he, factor == 2 ? "doubles" : "triples", c.items);
  draft.steps.push_back({value, '*', factor});
  value *= factor;
}

std::vector<int64_t> small_divisors(int64_t value) {
  std::vector<int64_t> divisors;
  for (int64_t d = 2; d <= 5; ++d) {
    if (value % d == 0) divisors.push_back(d);
  }
  return divisors;
}

void add_split(int64_t bags, const Cast& c, int64_t& value, Draft& draft) {
  draft.text += fmt::format(" {} splits the {} equally into {} bags and keeps one bag.", c.he_capital, c.items, bags);
  draft.steps.push_back({value, '/', bags});
  value /= bags;
}

void add_loss(Random& r, const Cast& c, int64_t& value, Draft& draft) {
  const int64_t amount = r.between(1, std::min<int64_t>(value - 1, 20));
  const std::array<std::string, 3> ways = {fmt::format(" {} gives {} {} to {}.", c.he_capital, amount, c.items, c.b),
                                           fmt::format(" {} loses {} {}.", c.he_capital, amount, c.items),
                                           fmt::format(" {} sells {} {}.", c.he_capital, amount, c.items)};
  draft.text += r.choice(ways);
  draft.steps.push_back({value, '-', amount});
  value -= amount;
}

void add_gain(Random& r, const Cast& c, int64_t& value, Draft& draft) {
  const int64_t amount = r.between(2, 20);
  const std::array<std::string, 3> ways = {fmt::format(" {} buys {} more {}.", c.he_capital, amount, c.items),
                                           fmt::format(" {} finds {} {}.", c.he_capital, amount, c.items),
                                           fmt::format(" {} gives {} {} {}.", c.b, c.a, amount, c.items)};
  draft.text += r.choice(ways);
  draft.steps.push_back({value, '+', amount});
  value += amount;
}

// Two or three changes of one amount.
Draft draft_chain(Random& r, const Cast& c) {
  int64_t value = r.between(3, 30);
  Draft draft{fmt::format("{} has {} {}.", c.a, value, c.items), {}};
  const int64_t num_steps = r.between(2, 3);
  for (int64_t i = 0; i < num_steps; ++i) {
    const int64_t kind = r.between(0, 5);
    const std::vector<int64_t> divisors = small_divisors(value);
    if (kind == 4 && value <= 30) {
      add_multiply(r, c, value, draft);
    } else if (kind == 5 && value > 3 && !divisors.empty()) {
      add_split(r.choice(divisors), c, value, draft);
    } else if ((kind == 2 || kind == 3) && value > 3) {
      add_loss(r, c, value, draft);
    } else {
      add_gain(r, c, value, draft);
    }
  }
  draft.text += fmt::format(" How many {} does {} have now?", c.items, c.a);
  return draft;
}

Draft draft_purchase(Random& r, const Cast& c) {
  const int64_t p = r.between(2, 9), q = r.between(2, 9), m = r.between(2, 6), n = r.between(2, 6);
  const int64_t first = r.below(std::ssize(words::kGoods));
  int64_t second = r.below(std::ssize(words::kGoods) - 1);
  if (second >= first) ++second;
  const std::string_view g = words::kGoods[static_cast<size_t>(first)], h = words::kGoods[static_cast<size_t>(second)];
  return {
      fmt::format("A {} costs {} dollars and a {} costs {} dollars. {} buys {} {}s and {} {}s. How many dollars does "
                  "{} pay?",
                  g, p, h, q, c.a, m, g, n, h, c.he),
      {{m, '*', p}, {n, '*', q}, {m * p, '+', n * q}}};
}

Draft draft_boxes(Random& r, const Cast& c) {
  const int64_t a = r.between(2, 9), b = r.between(3, 12), d = r.between(1, std::min<int64_t>(20, a * b - 1));
  return {fmt::format("There are {} boxes with {} {} in each box. {} takes {} {}. How many {} are left?", a, b, c.items,
                      c.a, d, c.items, c.items),
          {{a, '*', b}, {a * b, '-', d}}};
}

Draft draft_sharing(Random& r, const Cast& c) {
  const int64_t n = r.between(2, 6), total = n * r.between(3, 12), a = r.between(1, total - 1);
  return {
      fmt::format("{} has {} {} and {} has {} {}. They share all of them equally among {} friends. How many {} does "
                  "each friend get?",
                  c.a, a, c.items, c.b, total - a, c.items, n, c.items),
      {{a, '+', total - a}, {total, '/', n}}};
}

Draft draft_work(Random& r, const Cast& c) {
  const int64_t a = r.between(2, 9), b = r.between(2, 6), d = r.between(2, 6);
  return {
      fmt::format("{} makes {} toys per hour. {} works {} hours on Monday and {} hours on Tuesday. How many toys does "
                  "{} make?",
                  c.a, a, c.he_capital, b, d, c.he),
      {{b, '+', d}, {b + d, '*', a}}};
}

Draft draft_more_than(Random& r, const Cast& c) {
  const int64_t a = r.between(3, 30), b = r.between(2, 20);
  return {fmt::format("{} has {} {}. {} has {} more {} than {}. How many {} do they have together?", c.a, a, c.items,
                      c.b, b, c.items, c.a, c.items),
          {{a, '+', b}, {a, '+', a + b}}};
}

Draft draft_times_as_many(Random& r, const Cast& c) {
  const int64_t a = r.between(2, 15), b = r.between(2, 5);
  return {fmt::format("{} has {} {}. {} has {} times as many {} as {}. How many {} do they have together?", c.a, a,
                      c.items, c.b, b, c.items, c.a, c.items),
          {{a, '*', b}, {a, '+', a * b}}};
}

Draft draft_change(Random& r, const Cast& c) {
  const int64_t b = r.between(2, 8), p = r.between(2, 9), m = b * p + r.between(1, 40);
  const std::string_view g = r.choice(words::kGoods);
  return {fmt::format("{} has {} dollars. {} buys {} {}s for {} dollars each. How many dollars does {} have left?", c.a,
                      m, c.he_capital, b, g, p, c.he),
          {{b, '*', p}, {m, '-', b * p}}};
}

Draft draft_pages(Random& r, const Cast& c) {
  const int64_t a = r.between(3, 12), b = r.between(2, 9), p = a * b + r.between(1, 60);
  return {fmt::format("A book has {} pages. {} reads {} pages a day for {} days. How many pages are left to read?", p,
                      c.a, a, b),
          {{a, '*', b}, {p, '-', a * b}}};
}

Draft draft_garden(Random& r, const Cast& c) {
  const int64_t a = r.between(2, 9), b = r.between(3, 9), d = r.between(1, std::min<int64_t>(15, a * b - 1));
  const int64_t e = r.between(2, 15);
  return {fmt::format("A garden has {} rows of {} trees. {} cuts {} trees and plants {} new trees. How many trees are "
                      "there now?",
                      a, b, c.a, d, e),
          {{a, '*', b}, {a * b, '-', d}, {a * b - d, '+', e}}};
}

Draft draw_draft(Random& r) {
  using Maker = Draft (*)(Random&, const Cast&);
  // A chain is three times as likely as any other kind, as in training.
  static constexpr std::array<Maker, 12> kMakers = {draft_chain,         draft_chain,   draft_chain, draft_purchase,
                                                    draft_boxes,         draft_sharing, draft_work,  draft_more_than,
                                                    draft_times_as_many, draft_change,  draft_pages, draft_garden};
  const Cast cast = draw_cast(r);
  return r.choice(kMakers)(r, cast);
}

}  // namespace

WordProblem make_word_problem(Random& random) {
  while (true) {
    const Draft draft = draw_draft(random);
    WordProblem problem;
    problem.prompt = fmt::format("Question: {}\nAnswer:", draft.text);
    for (const Step& step : draft.steps) {
      problem.answer = result_of(step);
      problem.solution += fmt::format(" {} {} {} = {}.", step.left, step.op, step.right, problem.answer);
    }
    problem.solution += fmt::format("\n#### {}", problem.answer);
    if (problem.prompt.size() + problem.solution.size() <= kMaxTrainedBytes) return problem;
  }
}

}  // namespace asymkv
