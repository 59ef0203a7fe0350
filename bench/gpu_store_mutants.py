#!/usr/bin/env python3
"""Mutation suite of the writer, the widening kernel and the merge of partial results: each mutant is one text
replacement in one source file. It is compiled into one kernel file, linked with the objects of a clean build, and must
fail that kernel's device test. The clean tests must pass. One command:

    bench/gpu_build.sh OUT && bench/gpu_store_mutants.py OUT [--json FILE]

Exit code 0 only if the clean programs pass and every mutant is built and dies."""

import sys

import gpu_mutation


def target(unit, program, test_filter):
    return gpu_mutation.Target(f"{unit}.cu", f"k_{unit}.o", program, test_filter, ("test", program))


WRITER = target("write_d128", "write_gpu_test", "Writer.*")
WIDEN = target("widen_kernel", "prefill_gpu_test", "Widen.*")
MERGE = target("merge_partials", "prefill_gpu_test", "Merge.*")

# name, file, old text (must occur exactly once), new text, target
MUTANTS = [
    ("rotation of keys reversed", "write_pages.cuh",
     "low = ptx::pack_16bit<S::kBf16>(__fsub_rn(", "low = ptx::pack_16bit<S::kBf16>(__fadd_rn(", WRITER),
    ("quotient without its correction", "quotient.h",
     "return __fmaf_rn(__fmaf_rn(estimate, scale, -x), -reciprocal, estimate);", "return estimate;", WRITER),
    ("sign of zero lost in the quotient", "quotient.h",
     "return __fmaf_rn(__fmaf_rn(estimate, scale, -x), -reciprocal, estimate);",
     "return __fmaf_rn(__fmaf_rn(-estimate, scale, x), reciprocal, estimate);", WRITER),
    ("key scales of slots g and g + 8 swapped", "write_pages.cuh", "[lane.group + 8 * i] = divisors[i].scale",
     "[lane.group + 8 - 8 * i] = divisors[i].scale", WRITER),
    ("value scales written over the keys'", "write_pages.cuh", "+ (p.k_dynamic ? kPageSize : 0) + 2 * thread",
     "+ 2 * thread", WRITER),
    ("odd rows kept on the page path", "write_pages.cuh", "if (__all_sync(~0U, ok)) continue;", "continue;", WRITER),
    ("norm weights of the wrong half", "write_pages.cuh", "b[w] = scaled(b[w], high_w)", "b[w] = scaled(b[w], low_w)",
     WRITER),
    ("removed vector left in", "write_pages.cuh", "p.removed == nullptr ? bias :", "p.removed != nullptr ? bias :",
     WRITER),
    ("fresh keys without their bias", "write_pages.cuh", "two = fresh && p.removed != nullptr;", "two = false;", WRITER),
    ("token stride ignored", "write_pages.cuh", "token * (stride == 0 ? dense : stride)", "token * dense", WRITER),
    ("INT8 codes without their offset", "write_pages.cuh", "^ 0x80808080U;", "^ 0U;", WRITER),
    ("norm skipped on the row path", "write_rows.cuh",
     "if (p.k_norm != nullptr) x = __fmul_rn(__fmul_rn(x, factor), p.k_norm[channel]);", ";", WRITER),
    ("key scale not stored by the row path", "write_rows.cuh",
     "if (p.k_dynamic && lane == 0) row_scales(p, at.block)[at.slot] = scale;", ";", WRITER),
    ("counters of the sides swapped", "write_rows.cuh",
     "add_counts(counts, &p.counters->k_saturated, &p.counters->k_non_finite);",
     "add_counts(counts, &p.counters->v_saturated, &p.counters->v_non_finite);", WRITER),
    ("saturation counted one code early", "write_rows.cuh", "kE4M3Edge = 464.0F", "kE4M3Edge = 400.0F", WRITER),
    ("removed vector turned the wrong way", "widen_kernel.cu", "return is_low ? __fsub_rn(x, y) : __fadd_rn(x, y);",
     "return is_low ? __fadd_rn(x, y) : __fsub_rn(x, y);", WIDEN),
    ("position of the page forgotten", "widen_kernel.cu", "int64_t{at.page.position + slot} * kHalf",
     "int64_t{slot} * kHalf", WIDEN),
    ("key scale of the other eight slots", "widen_kernel.cu", "scale = i % 2 == 0 ? upper_scale : lower_scale;",
     "scale = i % 2 == 0 ? lower_scale : upper_scale;", WIDEN),
    ("value squares not transposed", "widen_kernel.cu", "ptx::transpose_8x8(low_slots)", "low_slots", WIDEN),
    ("rows behind the end of a page sent", "widen_kernel.cu", "if (lane < at.page.count) {", "if (lane < kPageSize) {",
     WIDEN),
    ("fixed value scale taken from the keys", "widen_kernel.cu", ": p.fixed_scales + 1;", ": p.fixed_scales;", WIDEN),
    ("empty state keeps its output", "merge_partials.cu", "return share == 0.0F ? 0.0F : share * x;",
     "return share * x;", MERGE),
    ("shares swapped in the merge", "merge_partials.cu", "return {a / sum, b / sum, top + logf(sum)};",
     "return {b / sum, a / sum, top + logf(sum)};", MERGE),
    ("two empty states give NaN", "merge_partials.cu", "if (top == -INFINITY) return {0.0F, 0.0F, -INFINITY};", ";",
     MERGE),
]

SUITE = gpu_mutation.Suite(__doc__, MUTANTS,
                           ("differ", "scales", "Which", "keys:", "values:", "Expected", "failed"))

if __name__ == "__main__":
    sys.exit(gpu_mutation.main(SUITE))
