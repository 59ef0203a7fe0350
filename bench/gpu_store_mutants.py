#!/usr/bin/env python3
"""Mutation suite of the writer, the widening kernel and the merge of partial results: each mutant is one text
replacement in one source file. It is compiled into one kernel file, linked with the objects of a clean build, and must
fail that kernel's device test. The clean tests must pass. One command:

    bench/gpu_build.sh OUT && bench/gpu_store_mutants.py OUT [--json FILE]

Exit code 0 only if the clean programs pass and every mutant is built and dies."""

import argparse
import concurrent.futures
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = "src/asymkv/kernels/cuda"
WRITER, WIDEN, MERGE = ("write_d128", "write_gpu_test", "Writer.*"), ("widen_kernel", "prefill_gpu_test", "Widen.*"), (
    "merge_partials", "prefill_gpu_test", "Merge.*")

# name, file, old text (must occur exactly once), new text, (kernel file, test program, its filter)
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


def link_flags():
    deps = os.environ.get("DEPS", "/usr")
    gtest = f"{deps}/lib/libgtest.a" if os.path.exists(f"{deps}/lib/libgtest.a") else "-lgtest"
    crypto = f"{deps}/lib/libcrypto.a" if os.path.exists(f"{deps}/lib/libcrypto.a") else "-lcrypto"
    cuda = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc"))))
    cudnn = os.environ.get("CUDNN")
    extra = [f"{cudnn}/lib/libcudnn.so.9", f"-Wl,-rpath,{cudnn}/lib", "-lnvrtc"] if cudnn else []
    return [gtest, crypto, f"-L{cuda}/lib64", "-lcudart_static", "-ldl", "-lrt", "-lpthread", *extra]


def build_mutant(out, mutant, folder):
    _, path, old, new, (unit, program, _) = mutant
    shutil.copytree(os.path.join(ROOT, "src"), os.path.join(folder, "src"))
    target = os.path.join(folder, KERNELS, path)
    text = open(target).read()
    if text.count(old) != 1:
        return f"pattern occurs {text.count(old)} times in {path}"
    open(target, "w").write(text.replace(old, new))
    built = subprocess.run(
        ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-O3", "-std=c++20", "--expt-relaxed-constexpr",
         f"-I{folder}/src", "-c", f"{folder}/{KERNELS}/{unit}.cu", "-o", f"{folder}/mutant.o"],
        capture_output=True, text=True)
    if built.returncode != 0:
        return "does not compile: " + built.stderr[-300:]
    objects = [o for o in glob.glob(f"{out}/[ihkl]_*.o") if os.path.basename(o) != f"k_{unit}.o"]
    linked = subprocess.run(["g++", "-o", f"{folder}/test", f"{out}/m_{program}.o", f"{out}/gtest_main.o",
                             f"{folder}/mutant.o", *objects, *link_flags()], capture_output=True, text=True)
    return "" if linked.returncode == 0 else "does not link: " + linked.stderr[-300:]


def run_test(program, test_filter, fail_fast):
    command = [program, f"--gtest_filter={test_filter}"] + (["--gtest_fail_fast"] if fail_fast else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "hangs", ""
    if "ASYMKV_TEST_SKIPPED_ENTIRELY" in done.stdout:
        return "no device", ""
    reasons = [line for line in done.stdout.splitlines() if "differ" in line or "scales" in line or "Which" in line
               or "keys:" in line or "values:" in line or "Expected" in line or "failed" in line]
    return ("passes" if done.returncode == 0 else "fails"), (reasons[0].strip() if reasons else done.stdout[-200:])


def judge(out, mutant):
    with tempfile.TemporaryDirectory() as folder:
        problem = build_mutant(out, mutant, folder)
        if problem:
            return {"mutant": mutant[0], "verdict": "broken", "why": problem}
        verdict, why = run_test(f"{folder}/test", mutant[4][2], True)
    killed = verdict in ("fails", "hangs")
    return {"mutant": mutant[0], "file": mutant[1], "test": mutant[4][1], "verdict": "killed" if killed else "SURVIVED",
            "why": why if verdict != "hangs" else "the test program hangs"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder of a finished bench/gpu_build.sh")
    parser.add_argument("--json", help="write the verdicts here")
    args = parser.parse_args()
    programs = sorted({m[4][1:] for m in MUTANTS})
    clean = {f"{p} {f}": run_test(f"{args.out}/{p}", f, False)[0] for p, f in programs}
    print("clean:", clean)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2))) as pool:
        rows = list(pool.map(lambda m: judge(args.out, m), MUTANTS))
    for row in rows:
        print(f"{row['verdict']:9} {row['mutant']:42} {row['why'][:110]}")
    if args.json:
        json.dump({"clean": clean, "mutants": rows}, open(args.json, "w"), indent=1)
    all_pass = all(v == "passes" for v in clean.values())
    return 0 if all_pass and all(r["verdict"] == "killed" for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
