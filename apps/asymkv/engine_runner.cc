#include "engine_runner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/engine/cache_setup.h"

namespace asymkv::app {
namespace {

RawOutcome failed_outcome(int64_t case_idx, ArmId arm, const std::string& failure) {
  RawOutcome outcome;
  outcome.case_idx = case_idx;
  outcome.arm = arm;
  outcome.failure = failure;
  return outcome;
}

// Text up to the first stop string, without it.
std::string cut_at_stop(std::string text, std::span<const std::string> stops) {
  size_t end = text.size();
  for (const std::string& stop : stops) end = std::min(end, text.find(stop));
  text.resize(std::min(end, text.size()));
  return text;
}

bool rounds_queries(const SequencePages& sequence) {
  return sequence.cache().config().use.query_dtype.has_value();
}

}  // namespace

std::pair<std::vector<int32_t>, std::vector<int32_t>> encode_case(const Tokenizer& tokenizer, const Case& item) {
  const bool chat = item.user_bytes.has_value();
  const TextRange user{0, chat ? static_cast<size_t>(*item.user_bytes) : 0};
  EncodeOptions options{.add_special = !chat, .parse_special = chat};
  std::vector<int32_t> context = tokenizer.encode(item.context, options);
  options.add_special = false;
  if (chat) options.plain = std::span(&user, 1);
  return {std::move(context),
          item.question.empty() ? std::vector<int32_t>() : tokenizer.encode(item.question, options)};
}

OwnReads EngineRunner::prompt_reads() const {
  return options_.path == RunPath::kReference ? OwnReads::kStored : OwnReads::kFresh;
}

EngineRunner::CaseTokens EngineRunner::tokenize(const Unit& unit, const Case& item) const {
  CaseTokens tokens;
  std::tie(tokens.context, tokens.question) = encode_case(model_.tokenizer, item);
  if (unit.kind == PanelKind::kLoss) {
    const auto length = static_cast<size_t>(item.length);
    if (tokens.context.size() < length) {
      tokens.failure = fmt::format("the document has {} tokens, fewer than {}", tokens.context.size(), length);
    }
    tokens.context.resize(std::min(tokens.context.size(), length));
    return tokens;
  }
  const auto total = static_cast<int64_t>(tokens.context.size() + tokens.question.size());
  if (total >= model_.config().max_position_embeddings) {
    tokens.failure =
        fmt::format("the prompt has {} tokens, the model {} positions", total, model_.config().max_position_embeddings);
  }
  if (tokens.context.empty()) tokens.failure = "the context has no token";
  return tokens;
}

void EngineRunner::grow_cache(ArmId arm, int64_t num_pages) {
  std::unique_ptr<KvCache>& cache = caches_[arm];
  if (cache != nullptr && cache->pool().num_pages() >= num_pages) return;
  kept_prefix_.reset();  // its pages live in the cache that goes
  cache.reset();
  CacheRequest request;
  request.format = arm_format(arm, model_.config().native_dtype);
  request.num_pages = num_pages;
  request.page_size = options_.page_size;
  request.scales = options_.scales;
  request.use = {arm_query_dtype(arm), arm_uses_control_kernels(arm)};
  cache = make_cache(model_.decoder, request);
}

void EngineRunner::check_plan(std::span<const Unit> units) {
  for (const ArmSlot& slot : units.front().slots) {
    try {
      grow_cache(slot.arm, 1);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("arm {}: {}", arm_name(slot.arm), e.what()));
    }
  }
  if (options_.pool_limit_bytes != 0) check_limit(units);
}

const KvCache* EngineRunner::cache_of(ArmId arm) const {
  const auto it = caches_.find(arm);
  return it == caches_.end() ? nullptr : it->second.get();
}

std::map<ArmId, KvCache*> EngineRunner::caches() {
  std::map<ArmId, KvCache*> all;
  for (const auto& [arm, cache] : caches_) all[arm] = cache.get();
  return all;
}

int64_t EngineRunner::pages_for(const Unit& unit, const CaseTokens& tokens) const {
  const auto pages = [&](int64_t count) { return (count + options_.page_size - 1) / options_.page_size + 1; };
  const auto context = static_cast<int64_t>(tokens.context.size());
  const auto question = static_cast<int64_t>(tokens.question.size());
  return pages(context + question + unit.generation.token_limit) + pages(context);
}

int64_t EngineRunner::bytes_per_page() const {
  int64_t bytes = 0;
  for (const auto& [arm, cache] : caches_) bytes += cache->layout().page_bytes().total() * cache->config().num_layers;
  return bytes;
}

std::vector<EngineRunner::Part> EngineRunner::cut_unit(const Unit& unit, const std::vector<CaseTokens>& tokens) const {
  const int64_t most_pages = options_.pool_limit_bytes == 0 ? std::numeric_limits<int64_t>::max()
                                                            : options_.pool_limit_bytes / bytes_per_page();
  std::vector<Part> parts = {Part()};
  for (size_t c = 0; c < tokens.size(); ++c) {
    const int64_t num_pages = pages_for(unit, tokens[c]);
    if (parts.back().num_pages + num_pages > most_pages && parts.back().end > parts.back().begin) {
      parts.push_back({c, c, 0});
    }
    parts.back().end = c + 1;
    parts.back().num_pages += num_pages;
  }
  return parts;
}

void EngineRunner::check_limit(std::span<const Unit> units) const {
  const int64_t page_bytes = bytes_per_page();
  for (const Unit& unit : units) {
    for (const Case& item : unit.cases) {
      const int64_t needed = pages_for(unit, tokenize(unit, item)) * page_bytes;
      if (needed <= options_.pool_limit_bytes) continue;
      throw_error(ErrorCode::kResourceExhausted,
                  "case {} needs {} bytes in the caches of {} arms, but the protocol's pool_limit_bytes is {}; raise "
                  "it, or ask for fewer arms",
                  item.id, needed, caches_.size(), options_.pool_limit_bytes);
    }
  }
}

void EngineRunner::prefill_per_arm(Prefix& prefix) {
  const auto total = static_cast<int64_t>(prefix.tokens.size());
  const int64_t step = options_.chunk_tokens > 0 ? options_.chunk_tokens : total;
  for (size_t s = 0; s < prefix.sequences.size(); ++s) {
    for (int64_t begin = 0; begin < total; begin += step) {
      throw_if_interrupted();
      ForwardChunk chunk;
      chunk.tokens = std::span(prefix.tokens)
                         .subspan(static_cast<size_t>(begin), static_cast<size_t>(std::min(step, total - begin)));
      chunk.start_pos = begin;
      chunk.targets = {&prefix.sequences[s]};
      chunk.context = &prefix.sequences[s];
      chunk.own_reads = prompt_reads();
      prefix.last_hidden[s] = model_.decoder.last_hidden(std::span(&chunk, 1), model_.config().native_dtype);
    }
  }
}

EngineRunner::Prefix EngineRunner::prefill(const Unit& unit, const std::string& text, std::span<const int32_t> tokens) {
  throw_if_interrupted();
  Prefix prefix;
  prefix.text = text;
  prefix.tokens.assign(tokens.begin(), tokens.end());
  for (const ArmSlot& slot : unit.slots) {
    prefix.arms.push_back(slot.arm);
    prefix.sequences.emplace_back(*caches_.at(slot.arm));
    prefix.last_hidden.emplace_back();
  }
  if (tokens.empty()) return prefix;
  const auto total = static_cast<int64_t>(tokens.size());
  const bool one_chunk = options_.chunk_tokens == 0 || total <= options_.chunk_tokens;
  if (options_.path == RunPath::kReference || options_.prefill == Prefill::kPerArm || !one_chunk) {
    prefill_per_arm(prefix);
    return prefix;
  }
  // One fresh chunk never reads what it stores, so one forward pass fills every arm's cache.
  ForwardChunk chunk;
  chunk.tokens = prefix.tokens;
  for (SequencePages& sequence : prefix.sequences) chunk.targets.push_back(&sequence);
  const std::vector<float> hidden = model_.decoder.last_hidden(std::span(&chunk, 1), model_.config().native_dtype);
  for (std::vector<float>& last : prefix.last_hidden) last = hidden;
  return prefix;
}

std::vector<EngineRunner::Lane> EngineRunner::start_lanes(const Unit& unit, const std::vector<CaseTokens>& tokens,
                                                          const Part& part) {
  std::vector<ArmId> arms;
  for (const ArmSlot& slot : unit.slots) arms.push_back(slot.arm);
  std::vector<std::vector<Lane>> by_slot(unit.slots.size());
  for (size_t c = part.begin; c < part.end; ++c) {
    if (!tokens[c].failure.empty()) continue;
    const std::string& text = unit.cases[c].context;
    if (kept_prefix_ == nullptr || kept_prefix_->text != text || kept_prefix_->arms != arms) {
      kept_prefix_.reset();
      kept_prefix_ = std::make_unique<Prefix>(prefill(unit, text, tokens[c].context));
    }
    for (size_t s = 0; s < unit.slots.size(); ++s) {
      Lane lane{static_cast<int64_t>(c), s, kept_prefix_->sequences[s].fork(), kept_prefix_->last_hidden[s]};
      by_slot[s].push_back(std::move(lane));
    }
  }
  // In the batch, each arm's lanes stand in the order its slot asks for.
  std::vector<Lane> lanes;
  for (size_t s = 0; s < unit.slots.size(); ++s) {
    for (const int64_t case_idx : unit.slots[s].order) {
      for (Lane& lane : by_slot[s]) {
        if (lane.case_idx == case_idx) lanes.push_back(std::move(lane));
      }
    }
  }
  return lanes;
}

void EngineRunner::read_questions(const std::vector<CaseTokens>& tokens, std::vector<Lane>& lanes) {
  std::vector<ForwardChunk> chunks;
  std::vector<Lane*> readers;
  for (Lane& lane : lanes) {
    const std::vector<int32_t>& question = tokens[static_cast<size_t>(lane.case_idx)].question;
    if (question.empty()) continue;
    chunks.push_back(append_chunk(lane.sequence, question, prompt_reads()));
    readers.push_back(&lane);
  }
  if (chunks.empty()) return;
  throw_if_interrupted();
  const std::vector<float> hidden = model_.decoder.last_hidden(chunks, model_.config().native_dtype);
  const auto dim = static_cast<ptrdiff_t>(model_.config().hidden_size);
  for (size_t i = 0; i < readers.size(); ++i) {
    const auto row = hidden.begin() + static_cast<ptrdiff_t>(i) * dim;
    readers[i]->hidden.assign(row, row + dim);
  }
}

void EngineRunner::run_generation(const Unit& unit, std::vector<Lane>& lanes, std::vector<RawOutcome>& outcomes) {
  std::vector<float> hidden;
  for (const Lane& lane : lanes) hidden.insert(hidden.end(), lane.hidden.begin(), lane.hidden.end());
  const std::vector<std::optional<int32_t>> first = model_.decoder.greedy_tokens(hidden);
  std::vector<DecodeSlot> slots;
  std::vector<const Lane*> slot_lanes;
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (!first[i]) {
      outcomes.push_back(failed_outcome(lanes[i].case_idx, unit.slots[lanes[i].slot_idx].arm, "non-finite logits"));
      continue;
    }
    DecodeSlot slot;
    slot.sequence = &lanes[i].sequence;
    slot.next = *first[i];
    slots.push_back(std::move(slot));
    slot_lanes.push_back(&lanes[i]);
  }
  decode_greedy(model_, slots, {unit.generation.token_limit, unit.generation.stops, model_.config().native_dtype});
  for (size_t i = 0; i < slots.size(); ++i) {
    RawOutcome outcome =
        failed_outcome(slot_lanes[i]->case_idx, unit.slots[slot_lanes[i]->slot_idx].arm, slots[i].failure);
    outcome.text = cut_at_stop(model_.tokenizer.decode(slots[i].token_ids, true), unit.generation.stops);
    outcome.tokens = static_cast<int64_t>(slots[i].token_ids.size()) + (slots[i].ended_by_token ? 1 : 0);
    outcome.truncated = slots[i].finish_reason == FinishReason::kLength;
    outcomes.push_back(std::move(outcome));
  }
}

// Losses of the same targets after what each sequence stores, one sequence after the other.
void EngineRunner::score_arms(std::span<SequencePages> sequences, std::span<const int32_t> inputs,
                              std::span<const int32_t> targets, std::vector<double>& losses) {
  throw_if_interrupted();
  std::vector<ForwardChunk> chunks;
  std::vector<int32_t> all_targets;
  for (SequencePages& sequence : sequences) {
    chunks.push_back(append_chunk(sequence, inputs, OwnReads::kStored));
    all_targets.insert(all_targets.end(), targets.begin(), targets.end());
  }
  const std::vector<double> scored = model_.decoder.losses(chunks, all_targets, model_.config().native_dtype);
  losses.insert(losses.end(), scored.begin(), scored.end());
}

void EngineRunner::run_loss_case(const Unit& unit, int64_t case_idx, const std::vector<int32_t>& tokens,
                                 std::vector<RawOutcome>& outcomes) {
  const int64_t scored = unit.cases[static_cast<size_t>(case_idx)].scored_tokens;
  // The token before the first target is the first that reads stored bytes; everything before it is prefill.
  const auto num_prefill = tokens.size() - static_cast<size_t>(scored) - 1;
  const auto inputs = std::span(tokens).subspan(num_prefill, static_cast<size_t>(scored));
  const auto targets = std::span(tokens).last(static_cast<size_t>(scored));
  kept_prefix_.reset();
  Prefix prefix = prefill(unit, {}, std::span(tokens).first(num_prefill));
  // As many arms in one pass as the products like rows. One whose queries are rounded has a pass of its own: it would
  // change the type of everybody's rows.
  const auto arms = static_cast<size_t>(std::max<int64_t>(1, model_.decoder.backends().model->mlp_rows() / scored));
  const auto rounds = [&](size_t s) { return rounds_queries(prefix.sequences[s]); };
  std::vector<double> losses;
  for (size_t s = 0; s < unit.slots.size();) {
    size_t end = s + 1;
    while (end < unit.slots.size() && end - s < arms && !rounds(s) && !rounds(end)) ++end;
    score_arms(std::span(prefix.sequences).subspan(s, end - s), inputs, targets, losses);
    s = end;
  }
  for (size_t s = 0; s < unit.slots.size(); ++s) {
    const auto own = std::span(losses).subspan(s * targets.size(), targets.size());
    RawOutcome outcome = failed_outcome(case_idx, unit.slots[s].arm, "");
    outcome.nll = std::accumulate(own.begin(), own.end(), 0.0) / static_cast<double>(scored);
    outcome.scored_tokens = scored;
    if (!std::isfinite(outcome.nll)) outcome = failed_outcome(case_idx, unit.slots[s].arm, "non-finite logits");
    outcomes.push_back(std::move(outcome));
  }
}

// The lanes whose queries are rounded, where products have operands of their own type: those would change the type of
// everybody's rows (decisions/0006).
std::vector<EngineRunner::Lane> EngineRunner::take_rounded(std::vector<Lane>& lanes) const {
  if (model_.decoder.backends().model->operand_dtype() == DType::kF32) return {};
  const auto plain = [](const Lane& lane) { return !rounds_queries(lane.sequence); };
  const auto first = std::stable_partition(lanes.begin(), lanes.end(), plain);
  std::vector<Lane> rounded(std::make_move_iterator(first), std::make_move_iterator(lanes.end()));
  lanes.erase(first, lanes.end());
  return rounded;
}

std::vector<RawOutcome> EngineRunner::run_unit(const Unit& unit) {
  std::vector<CaseTokens> tokens;
  std::vector<RawOutcome> outcomes;
  for (size_t c = 0; c < unit.cases.size(); ++c) {
    tokens.push_back(tokenize(unit, unit.cases[c]));
    if (tokens.back().failure.empty()) continue;
    for (const ArmSlot& slot : unit.slots) {
      outcomes.push_back(failed_outcome(static_cast<int64_t>(c), slot.arm, tokens.back().failure));
    }
  }
  for (const Part& part : cut_unit(unit, tokens)) {
    for (const ArmSlot& slot : unit.slots) grow_cache(slot.arm, part.num_pages);
    if (unit.kind == PanelKind::kLoss) {
      for (size_t c = part.begin; c < part.end; ++c) {
        if (tokens[c].failure.empty()) run_loss_case(unit, static_cast<int64_t>(c), tokens[c].context, outcomes);
      }
      continue;
    }
    std::vector<Lane> lanes = start_lanes(unit, tokens, part);
    std::vector<Lane> rounded = take_rounded(lanes);
    for (std::vector<Lane>* group : {&lanes, &rounded}) {
      if (group->empty()) continue;
      read_questions(tokens, *group);
      run_generation(unit, *group, outcomes);
    }
  }
  return outcomes;
}

}  // namespace asymkv::app
