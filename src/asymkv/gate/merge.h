#pragma once

#include <filesystem>
#include <vector>

#include "asymkv/gate/report.h"

namespace asymkv {

// probe.json of a shard: what its probe found, for the certificate of the merged run.
void write_shard_probe(const std::filesystem::path& folder, const ProbeResult& probe);

// Puts the shards of one run together, in any order, into the folder that the run would have written unsharded: the
// same bytes in protocol.json, cases.jsonl, run.json, progress.jsonl and outcomes/. record.json adds up what ran in all
// of them. Writes no certificate, policy or report.
// Nothing is written before every shard was read and checked. Throws Error{kBadInput} naming folder and reason for one
// that is no shard, is unfinished, was changed, or differs from the first in protocol, cases, model, build, worker,
// scales, arms or number of shards; for two with the same index, and for an index that is missing; Error{kUsage} for an
// `out` that is not empty.
FinishedRun merge_shards(const std::filesystem::path& out, const std::vector<std::filesystem::path>& shards);

}  // namespace asymkv
