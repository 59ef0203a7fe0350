#include "asymkv/model/tokenizer/bpe.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/utf8.h"
#include "asymkv/model/tokenizer/byte_level.h"

namespace asymkv::tokenizer {
namespace {

constexpr size_t kMaxWordBytes = size_t{1} << 30;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

bool WordCache::find(std::string_view word, std::vector<int32_t>& ids) {
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.words.find(word);
  if (it == shard.words.end()) return false;
  ids.insert(ids.end(), it->second.begin(), it->second.end());
  return true;
}

void WordCache::insert(std::string_view word, std::vector<int32_t> ids) {
  Shard& shard = shard_of(word);
  const std::lock_guard lock(shard.mutex);
  // Starting over costs little and follows a change of topic, which keeping the first words for ever does not.
  if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
  shard.words.emplace(word, std::move(ids));
}

// Repeats the best merge of a word until none is left. Symbols form a linked list; candidates wait in a heap and are
// judged again when they come up, because their symbols may have been merged away since.
class Bpe::Merger {
 public:
  Merger(const Bpe& bpe, std::vector<Symbol> symbols) : bpe_(bpe), symbols_(std::move(symbols)) {}

  void run() {
    for (size_t i = 0; i + 1 < symbols_.size(); ++i) push_candidate(static_cast<int32_t>(i));
    while (!heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      apply(best);
    }
  }

  void append_ids(std::vector<int32_t>& ids) const {
    for (const Symbol& symbol : symbols_) {
      if (symbol.id >= 0) ids.push_back(symbol.id);
    }
  }

 private:
  struct Candidate {
    int32_t rank, left, merged;  // `left` is the place of the left symbol
    // The heap's top is the lowest rank, then the leftmost.
    bool operator<(const Candidate& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };

  Symbol& at(int32_t place) { return symbols_[static_cast<size_t>(place)]; }

  void push_candidate(int32_t left) {
    const int32_t right = at(left).next;
    if (right < 0) return;
    if (const Merge* merge = bpe_.find_merge(at(left).id, at(right).id)) heap_.push({merge->rank, left, merge->merged});
  }

  void apply(const Candidate& candidate) {
    Symbol& left = at(candidate.left);
    if (left.id < 0 || left.next < 0) return;
    const Symbol right = at(left.next);
    const Merge* merge = bpe_.find_merge(left.id, right.id);
    if (merge == nullptr || merge->merged != candidate.merged) return;
    at(left.next).id = -1;
    left.id = merge->merged;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = candidate.left;
    if (left.previous >= 0) push_candidate(left.previous);
    push_candidate(candidate.left);
  }

  const Bpe& bpe_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> heap_;
};

Bpe::Bpe(const TokenizerDefinition& definition)
    : character_level_(definition.character_level),
      unknown_(definition.unknown),
      fuse_unknown_(definition.fuse_unknown) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::string spelling =
        character_level_ ? byte_token(byte) : std::string(byte_level_char(static_cast<unsigned char>(byte)));
    const auto it = definition.ids.find(spelling);
    byte_ids_[byte] = it == definition.ids.end() ? -1 : it->second;
  }
  merges_.reserve(definition.merges.size());
  for (size_t i = 0; i < definition.merges.size(); ++i) {
    const MergeRule& rule = definition.merges[i];
    // A rule given twice counts with its last rank, as in the reference.
    merges_.insert_or_assign(pair_key(rule.left, rule.right), Merge{static_cast<int32_t>(i), rule.merged});
  }
  if (character_level_) {
    for (const auto& [token, id] : definition.ids) {
      size_t pos = 0;
      next_code_point(token, pos);
      if (pos == token.size()) character_ids_.emplace(token, id);
    }
  }
  if (!definition.ignore_merges) return;
  for (const auto& [token, id] : definition.ids) {
    if (character_level_) {
      whole_words_.emplace(token, id);
    } else if (auto bytes = from_byte_level(token)) {
      whole_words_.emplace(std::move(*bytes), id);
    }
  }
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::vector<Bpe::Symbol> Bpe::initial_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool in_unknown = false;
  for (const char c : word) {
    int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool is_unknown = id < 0;
    if (is_unknown && (!unknown_ || (fuse_unknown_ && in_unknown))) continue;
    if (is_unknown) id = *unknown_;
    in_unknown = is_unknown;
    const auto place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

std::vector<Bpe::Symbol> Bpe::initial_characters(std::string_view word) const {
  std::vector<Symbol> symbols;
  const auto add = [&symbols](int32_t id) {
    const auto place = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, place - 1, place + 1});
  };
  // The reference holds an unknown back until a character with a token, or without fusing another unknown, follows: it
  // comes behind characters spelled in bytes.
  bool holds_unknown = false;
  const auto add_held = [&] {
    if (std::exchange(holds_unknown, false)) add(*unknown_);
  };
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    next_code_point(word, pos);
    const std::string_view character = word.substr(begin, pos - begin);
    if (const auto it = character_ids_.find(character); it != character_ids_.end()) {
      add_held();
      add(it->second);
    } else if (std::ranges::all_of(character, [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; })) {
      for (const char c : character) add(byte_ids_[static_cast<unsigned char>(c)]);
    } else if (unknown_) {
      if (!fuse_unknown_) add_held();
      holds_unknown = true;
    }
  }
  add_held();
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void Bpe::merge_word(std::string_view word, std::vector<int32_t>& ids) const {
  Merger merger(*this, character_level_ ? initial_characters(word) : initial_symbols(word));
  merger.run();
  merger.append_ids(ids);
}

void Bpe::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > kMaxWordBytes) throw_unsupported("a word of {} bytes is too long to tokenize", word.size());
  if (const auto it = whole_words_.find(word); it != whole_words_.end()) {
    ids.push_back(it->second);
    return;
  }
  if (word.size() > WordCache::kMaxWordBytes) return merge_word(word, ids);
  if (cache_.find(word, ids)) return;
  std::vector<int32_t> word_ids;
  merge_word(word, word_ids);
  ids.insert(ids.end(), word_ids.begin(), word_ids.end());
  cache_.insert(word, std::move(word_ids));
}

}  // namespace asymkv::tokenizer
