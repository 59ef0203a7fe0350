#include <algorithm>
#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <numeric>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/forward/decoder.h"
#include "asymkv/model/forward/decoder_parts.h"

namespace asymkv {
namespace {

constexpr size_t kMaxSteps = 24;

// Rows that each cache of a step has, so that few steps are recorded while sequences end one by one: 2^i or 3 * 2^i.
int64_t padded_rows(int64_t rows) {
  int64_t padded = 1;
  while (padded < rows) padded *= 2;
  return padded >= 4 && padded / 4 * 3 >= rows ? padded / 4 * 3 : padded;
}

struct CacheRows {
  KvCache* cache = nullptr;
  int64_t rows = 0;
};

// In the order in which caches occur.
std::vector<CacheRows> rows_by_cache(std::span<const ForwardChunk> chunks) {
  std::vector<CacheRows> caches;
  for (const ForwardChunk& chunk : chunks) {
    KvCache* cache = &chunk.context->cache();
    auto known = std::ranges::find(caches, cache, &CacheRows::cache);
    if (known == caches.end()) known = caches.insert(known, {cache, 0});
    ++known->rows;
  }
  return caches;
}

}  // namespace

// A decode step with `share` rows for each of some caches, the last ones padding: run once, then recorded, and from
// then on replayed.
struct Decoder::Step {
  std::vector<std::weak_ptr<const void>> caches;  // KvCache::life()
  int64_t share = 0;
  DType native_dtype = DType::kBF16;
  int64_t num_positions = 0;  // of the RoPE tables
  uint64_t pass = 0;
  bool has_run = false;   // under this pass number
  bool no_room = false;   // there was no memory for a recording: calls one by one are all it gets
  bool is_whole = false;  // nothing was thrown half way: plans and recording belong together
  Batch batch;
  Scratch scratch;
  int64_t scratch_floats = 0;
  std::unique_ptr<RecordedWork> recorded;

  int64_t bytes() const {
    return scratch_floats * static_cast<int64_t>(sizeof(float)) + (recorded == nullptr ? 0 : recorded->bytes());
  }
  bool serves(const Step& other) const {
    const auto same = [](const auto& a, const auto& b) { return !a.owner_before(b) && !b.owner_before(a); };
    return std::ranges::equal(caches, other.caches, same) && share == other.share &&
           native_dtype == other.native_dtype && num_positions == other.num_positions;
  }
};

class Decoder::Steps {
 public:
  explicit Steps(std::shared_ptr<const AttentionBackend> attention) : attention_(std::move(attention)) {}
  ~Steps() {
    drop_if([](const Step&) { return true; });
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // The known step of this kind; the one used longest ago goes for a new one.
  Step& get(Step wanted) {
    auto known = std::ranges::find_if(steps_, [&](const Step& step) { return step.serves(wanted); });
    if (known == steps_.end()) {
      drop_if([](const Step& step) {
        return std::ranges::any_of(step.caches, [](const auto& cache) { return cache.expired(); });
      });
      const Step* oldest = steps_.size() < kMaxSteps ? nullptr : &steps_.back();
      drop_if([&](const Step& step) { return &step == oldest; });
      known = steps_.insert(steps_.begin(), std::move(wanted));
    }
    steps_.splice(steps_.begin(), steps_, known);
    return steps_.front();
  }

  // All but one.
  void drop_others(const Step& kept) {
    drop_if([&](const Step& step) { return &step != &kept; });
  }

  int64_t bytes() const {
    return std::transform_reduce(steps_.begin(), steps_.end(), int64_t{0}, std::plus(), std::mem_fn(&Step::bytes));
  }

  // As if it had never run.
  void restart(Step& step) {
    attention_->forget_pass(step.pass);
    step.recorded.reset();
    step.has_run = false;
    step.pass = new_pass();
    attention_->keep_pass(step.pass);
  }

 private:
  template <typename Which>
  void drop_if(const Which& which) {
    std::erase_if(steps_, [&](const Step& step) {
      if (!which(step)) return false;
      attention_->forget_pass(step.pass);
      return true;
    });
  }

  std::shared_ptr<const AttentionBackend> attention_;
  std::list<Step> steps_;
};

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

// Decoders may share a backend.
uint64_t Decoder::new_pass() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// One token of each sequence, which reads what its cache stores: all that changes from one such step to the next is in
// arrays.
bool Decoder::is_step(std::span<const ForwardChunk> chunks) const {
  if (!backends_.model->records() || backends_.control != nullptr || config_.query_temperature != 0.0) return false;
  return !chunks.empty() && std::ranges::all_of(chunks, [](const ForwardChunk& chunk) {
    return chunk.tokens.size() == 1 && chunk.own_reads == OwnReads::kStored && chunk.targets.size() == 1 &&
           chunk.targets.front() == chunk.context && !chunk.context->cache().config().use.query_dtype;
  });
}

// Rows, tokens, positions and slots; padding has token and position 0 and no slot.
void Decoder::lay_out_step(std::span<const ForwardChunk> chunks, Step& step) const {
  Batch batch;
  batch.chunks = chunks;
  batch.native_dtype = step.native_dtype;
  batch.pass = step.pass;
  batch.num_rows = std::ssize(step.caches) * step.share;
  batch.tokens.resize(static_cast<size_t>(batch.num_rows));
  batch.positions.resize(static_cast<size_t>(batch.num_rows));
  std::map<const KvCache*, int64_t> next_row;
  for (const ForwardChunk& chunk : chunks) {
    check_chunk(chunk);
    const int64_t first = std::ssize(next_row) * step.share;  // of a cache that occurs for the first time
    const int64_t row = next_row.try_emplace(&chunk.context->cache(), first).first->second++;
    batch.rows.push_back({row, 1});
    batch.tokens[static_cast<size_t>(row)] = chunk.tokens.front();
    batch.positions[static_cast<size_t>(row)] = static_cast<int32_t>(chunk.start_pos);
  }
  append_rows(batch);
  batch.row_dtype = row_dtype(batch, nullptr);
  step.batch = std::move(batch);
}

void Decoder::list_step_reads(Step& step) const {
  Batch& batch = step.batch;
  const auto rows = static_cast<size_t>(batch.num_rows);
  Batch::Reads reads{backends_.attention.get(), std::vector<AttendSequence>(rows), std::vector<KvCache*>(rows)};
  for (size_t row = 0; row < rows; ++row) {
    reads.sequences[row].query_row = static_cast<int64_t>(row);
    reads.sequences[row].num_queries = 1;
    reads.caches[row] = batch.writes[row / static_cast<size_t>(step.share)].cache;
  }
  for (size_t c = 0; c < batch.chunks.size(); ++c) {
    reads.sequences[static_cast<size_t>(batch.rows[c].begin)] = attend_sequence(batch, c, step.scratch);
  }
  batch.reads = {std::move(reads)};
}

// Visits a write and an attention that stand for those of `layers` layers, as long as visit(params, layers) is true.
template <typename Visit>
bool Decoder::for_each_call(Step& step, const Visit& visit) const {
  Batch& batch = step.batch;
  const std::vector<WriteTarget> targets = write_targets(batch, 0, *backends_.attention);
  WriteKvParams write = write_params(batch, 0, step.scratch);
  write.geometry = kv_geometry(targets.front().cache.layout->geometry().page_size);
  write.targets = targets;
  if (!visit(write, config_.num_layers)) return false;
  std::map<int64_t, std::pair<int64_t, int64_t>> windows;  // first layer and number of layers
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    ++windows.try_emplace(config_.layers[static_cast<size_t>(layer)].window, layer, 0).first->second.second;
  }
  for (const auto& [window, layers] : windows) {
    show_layer(batch, layers.first);
    AttendParams attend = attend_params(batch, layers.first, step.scratch);
    attend.sequences = batch.reads.front().sequences;
    if (!visit(attend, layers.second)) return false;
  }
  return true;
}

// Whether the step's calls, recorded or not, now serve its batch.
bool Decoder::replan_step(Step& step) const {
  const AttentionBackend& attention = *backends_.attention;
  return for_each_call(step, [&](const auto& params, int64_t) { return attention.replan(params); });
}

// Whether the step is recorded now. Memory for it may be missing where calls one by one find theirs: other steps go,
// and this one is called.
bool Decoder::record_step(Step& step) const {
  if (step.recorded != nullptr) return true;
  if (step.no_room) return false;
  try {
    step.recorded = backends_.model->record([this, &step] {
      step.batch.recorded = true;
      run_all_layers(step.batch, step.scratch, nullptr);
    });
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kResourceExhausted) throw;
  }
  step.no_room = true;
  steps_->drop_others(step);
  backends_.model->release_unused();
  steps_->restart(step);
  step.batch.pass = step.pass;
  step.batch.recorded = false;
  return false;
}

void Decoder::replay_step(Step& step) const {
  step.recorded->replay();
  const AttentionBackend& attention = *backends_.attention;
  for_each_call(step, [&](const auto& params, int64_t layers) {
    attention.replayed(params, layers);
    return true;
  });
}

int64_t Decoder::step_bytes() const {
  return steps_ == nullptr ? 0 : steps_->bytes();
}

// Ready for its next run.
Decoder::Step& Decoder::find_step(std::span<const ForwardChunk> chunks, DType native_dtype) {
  if (steps_ == nullptr) steps_ = std::make_shared<Steps>(backends_.attention);
  Step wanted;
  for (const CacheRows& item : rows_by_cache(chunks)) {
    wanted.caches.push_back(item.cache->life());
    wanted.share = std::max(wanted.share, padded_rows(item.rows));
  }
  wanted.native_dtype = native_dtype;
  wanted.num_positions = max_positions();
  Step& step = steps_->get(std::move(wanted));
  if (!step.is_whole) steps_->restart(step);
  return step;
}

const FloatArray* Decoder::run_step(std::span<const ForwardChunk> chunks, DType native_dtype,
                                    std::vector<int64_t>& row_of) {
  if (!is_step(chunks)) return nullptr;
  reserve_for(chunks);
  Step& step = find_step(chunks, native_dtype);
  lay_out_step(chunks, step);
  step.is_whole = false;
  if (step.scratch.x.data() == nullptr) {
    step.scratch_floats = 0;
    step.scratch = make_scratch(step.batch.num_rows, step.batch.row_dtype, [&](int64_t floats) {
      step.scratch_floats += floats;
      return backends_.model->allocate(floats);
    });
  }
  list_step_reads(step);
  start_batch(step.batch, step.scratch);
  if (step.has_run && !replan_step(step)) {
    steps_->restart(step);
    step.batch.pass = step.pass;
  }
  if (step.has_run && record_step(step)) {
    replay_step(step);
  } else {
    run_all_layers(step.batch, step.scratch, nullptr);
    step.has_run = true;
  }
  for (const Batch::Row& row : step.batch.rows) row_of.push_back(row.begin);
  step.batch.chunks = {};
  step.is_whole = true;
  return &step.scratch.x;
}

}  // namespace asymkv
