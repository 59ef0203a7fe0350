#include "run_record.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/generate.h"
#include "asymkv/record/record_table.h"
#include "asymkv/runtime/backends.h"

namespace asymkv::app {
namespace {

class RunRecord : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::filesystem::path source = std::getenv("ASYMKV_SOURCE_DIR");
    model_ = load_model(source / "models" / "probe-robust", select_backends("cpu")).release();
  }
  static void TearDownTestSuite() { delete model_; }

  static std::unique_ptr<KvCache> cache(const char* kv) {
    CacheRequest request;
    request.format = parse_kv_format(kv, model_->config().native_dtype, ScaleKind::kDynamic);
    request.num_pages = 4;
    return make_cache(model_->decoder, request);
  }

  static void run_on(KvCache& cache) {
    SequencePages sequence(cache);
    GenerateOptions options;
    options.max_tokens = 3;
    options.native_dtype = model_->config().native_dtype;
    generate(*model_, sequence, std::vector<int32_t>{1, 2, 3, 4}, options, [](int32_t) {});
  }

  static Record record_of(const KvCache& cache) {
    const RunClock clock;
    return record_from_json(make_run_record(*model_, cache, {"k16v8", "dynamic"}, clock), "record");
  }

  static LoadedModel* model_;
};
LoadedModel* RunRecord::model_ = nullptr;

// The kernels ran on one pool, and another one lies there when the record is made: somebody changed the allocation
// behind the program's back. The record must not vouch for it.
TEST_F(RunRecord, AnAllocationThatNoKernelRanOnIsNotAttested) {
  const auto served = cache("k16v8");
  run_on(*served);
  const Record honest = record_of(*served);
  EXPECT_TRUE(honest.key.attested());
  EXPECT_TRUE(honest.value.attested());
  EXPECT_EQ(honest.value.effective(), "e4m3");

  const auto swapped = cache("k8v16");
  const Record record = record_of(*swapped);
  EXPECT_EQ(record.value.requested, "k16v8");
  EXPECT_EQ(record.value.effective(), "bf16");
  EXPECT_FALSE(record.key.attested());
  EXPECT_FALSE(record.value.attested());
  const std::string words = render_record({"", record});
  EXPECT_NE(words.find("not attested: nothing says which kernels ran"), std::string::npos) << words;
}

TEST_F(RunRecord, TheMachineAndTheWorkerAreTwoThings) {
  const auto served = cache("k16v8");
  run_on(*served);
  const Record record = record_of(*served);
  EXPECT_EQ(record.version, kRecordVersion);
  EXPECT_EQ(record.worker, worker_name(model_->decoder.backends()));
  EXPECT_NE(record.device.name, record.worker);
  EXPECT_EQ(record.device.kind, "cpu");
  EXPECT_GT(record.launch.threads, 0);
  EXPECT_EQ(record.launch.batch, 1);
}

TEST_F(RunRecord, WithoutACacheBothSidesAreUnknown) {
  const RunClock clock;
  const Record record = record_from_json(make_model_record(*model_, clock), "record");
  EXPECT_FALSE(record.key.requested || record.key.resolved || record.key.allocated);
  EXPECT_EQ(record.value.effective(), "unknown");
  EXPECT_EQ(record.model.weights_sha256.size(), 64U);
}

}  // namespace
}  // namespace asymkv::app
