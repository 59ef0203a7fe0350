#!/usr/bin/env python3
"""Mutation suite of the decode kernel: each mutant is one text replacement in one source file. It is compiled into one
kernel instance, linked with the objects of a clean build, and must fail the device tests (page and split edges, served
geometries at 30,720 tokens, features, splits of the removed vector). The clean build must pass. One command:

    bench/gpu_build.sh OUT && bench/gpu_mutants.py OUT [--json FILE]

Exit code 0 only if the clean program passes and every mutant is built and dies."""

import sys

import gpu_mutation

FILTER = ("*EveryFormat.AtPageAndSplitEdges/1:*ServedGeometries*:*EveryFeature*/0:*QueriesAnywhere*:*EverySplitOf*:"
          "*GraphReplays*:*EverySplitRule*:*SegmentLater*")

# name, file, old text (must occur exactly once), new text, instance that gets it
MUTANTS = [
    ("key and value scale swapped", "decode_kernel.cuh", "scales.x = __ldg(p.fixed_scales);",
     "scales.x = __ldg(p.fixed_scales + 1);", "e4m3_e4m3_d128"),
    ("values read at the keys' width", "decode_kernel.cuh", "add_values<C>(page_at + C.k_block_bytes(),",
     "add_values<C>(page_at + C.v_block_bytes(),", "bf16_e4m3_d128"),
    ("last partial page treated as full", "decode_kernel.cuh", "const bool at_edge =",
     "const bool at_edge = false && ", "bf16_e4m3_d128"),
    ("page stride off by one load", "decode_kernel.cuh", "p_.blocks + id * C.block_bytes()",
     "p_.blocks + id * (C.block_bytes() - 16)", "bf16_e4m3_d128"),
    ("max subtraction dropped", "fragments.cuh",
     "scores[tile][j] = ptx::exp2_approx(scores[tile][j] - state.max[tile][j]);",
     "scores[tile][j] = ptx::exp2_approx(scores[tile][j]);", "bf16_e4m3_d128"),
    ("rescale dropped in merge", "merge.cuh", "keep = merge_weight(merged.max, base);", "keep = 1.0F;",
     "bf16_e4m3_d128"),
    ("empty split merged", "merge.cuh", "return common == -INFINITY ? 0.0F : common;", "return common;",
     "bf16_e4m3_d128"),
    ("edge of the mask >= becomes >", "fragments.cuh", "key >= end", "key > end", "bf16_e4m3_d128"),
    ("a query sees the next key", "fragments.cuh", "min(position + 1, segment.seq_len)",
     "min(position + 2, segment.seq_len)", "bf16_e4m3_d128"),
    ("the window's first key left out", "fragments.cuh", "key < begin ||", "key <= begin ||", "bf16_e4m3_d128"),
    ("rows of later query tokens", "fragments.cuh", "return column + token_of(p, column) * p.row_skip;",
     "return column;", "bf16_e4m3_d128"),
    ("head and group swapped", "fragments.cuh", "(s.query_row * p.num_kv_heads + s.kv_head) * p.group",
     "(s.query_row * p.group + s.kv_head) * p.num_kv_heads", "bf16_e4m3_d128"),
    ("quarters of a page of 64 not told apart", "decode_kernel.cuh", "((id << p_.page_shift) + within)",
     "((id << p_.page_shift) + 0 * within)", "bf16_e4m3_d128"),
    ("soft cap with half its slope", "decode_kernel.cuh", "score * p.soft_cap_slope", "score * 0.5F * p.soft_cap_slope",
     "bf16_e4m3_d128"),
    ("sink weighed without the max", "merge.cuh", "merge_weight(sink, base)", "merge_weight(sink, 0.0F)",
     "bf16_e4m3_d128"),
    ("scale of the previous head", "decode_kernel.cuh", "p_.scales + id * C.scale_bytes()",
     "p_.scales + (id - (id > 0 ? 1 : 0)) * C.scale_bytes()", "i8_e4m3_d128"),
    ("sign bit lost in the E4M3 decode", "fragments.cuh", ': "r"(codes));', ': "r"(codes & 0x7f7f7f7fU));',
     "bf16_e4m3_d128"),
    ("bias added without rotation", "window_bias.cuh", "return make_float2(cosine, sine);",
     "return make_float2(1.0F, 0.0F);", "i8_e4m3_d128"),
    ("bias window turned to its begin", "window_bias.cuh", "window * kWindowKeys + kWindowKeys / 2",
     "window * kWindowKeys", "i8_e4m3_d128"),
    ("low parts of the bias coefficients dropped", "window_bias.cuh", "low ? split.y : split.x",
     "low ? 0U : split.x", "i8_e4m3_d128"),
    ("fast pairs turned a page too far", "decode_kernel.cuh", "fast.turn(p, tables, run << p.bias_shape.table_shift,",
     "fast.turn(p, tables, 1 + (run << p.bias_shape.table_shift),", "i8_e4m3_d128"),
    ("fast pairs of the next head", "window_bias.cuh", "p.fast_bias[segment.kv_head * fast + pair]",
     "p.fast_bias[(1 - segment.kv_head) * fast + pair]", "i8_e4m3_d128"),
    ("vector of the next head", "window_bias.cuh", "tables.pairs + segment.kv_head * slow",
     "tables.pairs + (1 - segment.kv_head) * slow", "i8_e4m3_d128"),
    ("both channels of a pair the same", "window_bias.cuh", "unpack(queries.b[tile][step + kHalf / 16], q2);",
     "unpack(queries.b[tile][step], q2);", "i8_e4m3_d128"),
    ("head left from the segment before not finished", "decode_kernel.cuh", "if ((round == 0 ? last : late) < 0) continue;",
     "if (round == 1 || last < 0) continue;", "bf16_e4m3_d128"),
    ("slice of a peer taken for another's", "merge.cuh", "is_there ? peers.out[r * slice + e]",
     "is_there ? peers.out[e]", "bf16_e4m3_d128"),
    ("INT8 offset with the wrong sign", "fragments.cuh", "queries.offset[tile][1] = -kI8Offset",
     "queries.offset[tile][1] = kI8Offset", "i8_e4m3_d128"),
    ("unused value slots not cleared", "fragments.cuh",
     "values[load * 32] = masked(values[load * 32], first, first, second, second);", ";", "bf16_e4m3_d128"),
    ("one step of the value scales dropped", "fragments.cuh", "scores[tile][j + 2] = b * lower.rest;",
     "scores[tile][j + 2] = b;", "bf16_e4m3_d128"),
]


def target(instance):
    return gpu_mutation.Target(f"instances/decode_{instance}.cu", f"i_{instance}.o", "decode_gpu_test", FILTER,
                               ("instance", instance))


SUITE = gpu_mutation.Suite(__doc__, [(*mutant[:4], target(mutant[4])) for mutant in MUTANTS],
                           ("above", "off by", "failed", "other bits", "zeros"))

if __name__ == "__main__":
    sys.exit(gpu_mutation.main(SUITE))
