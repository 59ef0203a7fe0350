"""What the GPU mutation suites share: a mutant is one text replacement in one source file. It is compiled into one kernel
file, linked with the objects of a clean build (bench/gpu_build.sh) and must fail a device test that passes without it."""

import argparse
import concurrent.futures
import dataclasses
import glob
import json
import os
import shutil
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = "src/asymkv/kernels/cuda"


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a mutant goes and what must notice it."""

    kernel: str  # .cu file below KERNELS that is compiled again
    object: str  # its object in the clean build, left out of the link
    program: str  # test program
    filter: str  # GoogleTest filter
    label: tuple  # (field, value) of its row in the JSON


@dataclasses.dataclass(frozen=True)
class Suite:
    description: str
    mutants: list  # (name, file, old text that occurs exactly once, new text, Target)
    reason_words: tuple  # a line of the test's output with one of these says why it failed


def link_flags():
    deps = os.environ.get("DEPS", "/usr")
    gtest = f"{deps}/lib/libgtest.a" if os.path.exists(f"{deps}/lib/libgtest.a") else "-lgtest"
    crypto = f"{deps}/lib/libcrypto.a" if os.path.exists(f"{deps}/lib/libcrypto.a") else "-lcrypto"
    cuda = os.path.dirname(os.path.dirname(os.path.realpath(shutil.which("nvcc"))))
    cudnn = os.environ.get("CUDNN")
    extra = [f"{cudnn}/lib/libcudnn.so.9", f"-Wl,-rpath,{cudnn}/lib", "-lnvrtc"] if cudnn else []
    return [gtest, crypto, f"-L{cuda}/lib64", "-lcudart_static", "-ldl", "-lrt", "-lpthread", *extra]


def build_mutant(out, mutant, folder):
    """Why the mutant could not be built into folder/test; empty if it was."""
    _, path, old, new, target = mutant
    shutil.copytree(os.path.join(ROOT, "src"), os.path.join(folder, "src"))
    mutated = os.path.join(folder, KERNELS, path)
    text = open(mutated).read()
    if text.count(old) != 1:
        return f"pattern occurs {text.count(old)} times in {path}"
    open(mutated, "w").write(text.replace(old, new))
    nvcc = ["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-O3", "-std=c++20", "--expt-relaxed-constexpr",
            f"-I{folder}/src", "-c", f"{folder}/{KERNELS}/{target.kernel}", "-o", f"{folder}/mutant.o"]
    built = subprocess.run(nvcc, capture_output=True, text=True)
    if built.returncode != 0:
        return "does not compile: " + built.stderr[-300:]
    objects = [o for o in glob.glob(f"{out}/[ihkl]_*.o") if os.path.basename(o) != target.object]
    link = ["g++", "-o", f"{folder}/test", f"{out}/m_{target.program}.o", f"{out}/gtest_main.o", f"{folder}/mutant.o",
            *objects, *link_flags()]
    linked = subprocess.run(link, capture_output=True, text=True)
    return "" if linked.returncode == 0 else "does not link: " + linked.stderr[-300:]


def run_test(program, test_filter, reason_words, fail_fast):
    command = [program, f"--gtest_filter={test_filter}"] + (["--gtest_fail_fast"] if fail_fast else [])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "hangs", "the test program hangs"
    if "ASYMKV_TEST_SKIPPED_ENTIRELY" in done.stdout:
        return "no device", ""
    reasons = [line for line in done.stdout.splitlines() if any(word in line for word in reason_words)]
    return ("passes" if done.returncode == 0 else "fails"), (reasons[0].strip() if reasons else done.stdout[-200:])


def judge(out, suite, mutant):
    name, path, _, _, target = mutant
    with tempfile.TemporaryDirectory() as folder:
        problem = build_mutant(out, mutant, folder)
        if problem:
            return {"mutant": name, "verdict": "broken", "why": problem}
        verdict, why = run_test(f"{folder}/test", target.filter, suite.reason_words, True)
    killed = verdict in ("fails", "hangs")
    field, value = target.label
    return {"mutant": name, "file": path, field: value, "verdict": "killed" if killed else "SURVIVED", "why": why}


def run_clean(out, suite):
    """Verdict of each clean program with its filter; of the only one alone where there is one."""
    verdicts = {}
    for program, test_filter in sorted({(m[4].program, m[4].filter) for m in suite.mutants}):
        verdict, why = run_test(f"{out}/{program}", test_filter, suite.reason_words, False)
        print(f"clean {program}: {verdict} {why if verdict != 'passes' else ''}")
        verdicts[f"{program} {test_filter}"] = verdict
    passes = all(verdict == "passes" for verdict in verdicts.values())
    return passes, verdicts if len(verdicts) > 1 else next(iter(verdicts.values()))


def main(suite):
    parser = argparse.ArgumentParser(description=suite.description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder of a finished bench/gpu_build.sh")
    parser.add_argument("--json", help="write the verdicts here")
    args = parser.parse_args()
    clean_passes, clean = run_clean(args.out, suite)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2))) as pool:
        rows = list(pool.map(lambda m: judge(args.out, suite, m), suite.mutants))
    for row in rows:
        print(f"{row['verdict']:9} {row['mutant']:42} {row['why'][:120]}")
    if args.json:
        json.dump({"clean": clean, "mutants": rows}, open(args.json, "w"), indent=1)
    return 0 if clean_passes and all(r["verdict"] == "killed" for r in rows) else 1
