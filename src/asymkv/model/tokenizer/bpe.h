#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "asymkv/model/tokenizer/definition.h"

namespace asymkv::tokenizer {

// Words already merged. Natural text repeats itself; the bound keeps a long-lived process from growing without end.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;
  static constexpr size_t kMaxWordsPerShard = 2048;

  // Appends the word's ids and returns true if it is known.
  bool find(std::string_view word, std::vector<int32_t>& ids);
  void insert(std::string_view word, std::vector<int32_t> ids);

 private:
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, StringHash, std::equal_to<>> words;
  };
  Shard& shard_of(std::string_view word) { return shards_[StringHash{}(word) % shards_.size()]; }
  std::array<Shard, 16> shards_;
};

// Byte-pair merges of one vocabulary (Sennrich et al. 2016; on bytes: Radford et al. 2019). Thread-safe.
class Bpe {
 public:
  explicit Bpe(const TokenizerDefinition& definition);

  // Appends the ids of one word (raw bytes, at most 2^30). Time is n log n.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  struct Symbol {
    int32_t id;  // -1 once merged into its left neighbour
    int32_t previous, next;
  };
  class Merger;

  const Merge* find_merge(int32_t left, int32_t right) const;
  std::vector<Symbol> initial_symbols(std::string_view word) const;
  std::vector<Symbol> initial_characters(std::string_view word) const;
  void merge_word(std::string_view word, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;  // -1: the vocabulary has no token for this byte
  bool character_level_;
  TokenIds character_ids_;  // tokens of one character; filled only if character_level
  std::unordered_map<uint64_t, Merge> merges_;
  TokenIds whole_words_;  // by raw bytes; filled only with ignore_merges
  std::optional<int32_t> unknown_;
  bool fuse_unknown_;
  mutable WordCache cache_;
};

}  // namespace asymkv::tokenizer
