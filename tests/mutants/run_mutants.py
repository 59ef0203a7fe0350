#!/usr/bin/env python3
"""Builds deliberately broken copies of the host kernels and expects the tests to catch each of them.

For every entry of mutants.toml one source file is patched in a copy, the objects that include it are compiled again
(one SIMD target, light optimisation), the test program is linked and the named tests are run: at least one must fail.
The clean tree must pass the same tests. Exits 1 on a survivor, on a text that does not match once, or on a mutant that
does not compile.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib

MODULES = {
    "base": ["error.cc", "hash.cc", "parallel.cc"],
    "tensor": ["dtype.cc", "ggml_quants.cc", "weight_matrix.cc"],
    "device": ["device_none.cc"],
    "kv": [
        "format.cc", "codec.cc", "rope.cc", "key_transform.cc", "layout.cc", "page_pool.cc", "cache.cc", "tiled_layout.cc",
    ],
    "ops": ["attention.cc", "model_ops.cc", "sampling.cc"],
    "kernels": [
        "checks.cc", "ref/ref_attention.cc", "cpu/attend_plan.cc", "cpu/merge.cc", "cpu/simd_kernels.cc",
        "cpu/cpu_attention.cc", "testing/attend_case.cc", "testing/compare.cc",
        "cpu/cpu_attention_test.cc", "cpu/attend_plan_test.cc", "cpu/merge_test.cc", "cpu/write_rows_test.cc",
        "cpu/model/cpu_model.cc", "cpu/model/elementwise.cc", "cpu/model/linear.cc", "cpu/model/linear_kernels.cc",
        "cpu/model/cpu_model_test.cc", "cpu/model/linear_test.cc",
    ],
}
# One SIMD target (the best of what the flags name) and threads of the standard library keep the program quick to build.
FLAGS = [
    "-std=c++20", "-O1", "-ffp-contract=off", "-w", "-DHWY_COMPILE_ONLY_STATIC",
    "-DASYMKV_STD_THREADS=1", "-pthread",
]
LIBRARIES = ["-lgtest", "-lgmock", "-lgtest_main", "-lhwy", "-lfmt", "-lcrypto", "-pthread"]
TEST_SECONDS = 300


class Failure(Exception):
    """Why the run cannot judge a mutant."""


@dataclasses.dataclass
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str

    def applied(self, text):
        """The defective text of the file."""
        if text.count(self.old) != 1:
            raise Failure(f"old text occurs {text.count(self.old)} times in {self.file}, not once")
        return text.replace(self.old, self.new)


@dataclasses.dataclass
class Tree:
    """The clean build: where its sources are, its objects, and the files each object was made from."""

    source: pathlib.Path
    work: pathlib.Path
    compiler: list
    flags: list = dataclasses.field(default_factory=lambda: [*FLAGS, "-march=native"])
    libraries: list = dataclasses.field(default_factory=lambda: LIBRARIES)

    def units(self):
        return [f"{module}/{name}" for module, names in MODULES.items() for name in names]

    def object_of(self, unit, folder):
        return folder / (unit.replace("/", "_") + ".o")

    def compile(self, unit, folder, overlay=None):
        """Compiles one unit; an overlay folder is searched before the sources."""
        target = self.object_of(unit, folder)
        path = self.source / "asymkv" / unit
        includes = [f"-I{self.source}"]
        if overlay is not None:
            includes.insert(0, f"-I{overlay}")
            if (overlay / "asymkv" / unit).exists():
                path = overlay / "asymkv" / unit
        command = [*self.compiler, *self.flags, *includes, "-MD", "-c", str(path), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{unit} does not compile: {done.stderr.strip().splitlines()[0:3]}")
        return target

    def includes_file(self, unit, file):
        rules = self.object_of(unit, self.work).with_suffix(".d").read_text()
        return f"asymkv/{file}" in rules.replace("\\\n", " ").replace(":", " ").replace("//", "/")

    def link(self, objects, program):
        command = [*self.compiler, *map(str, objects), "-o", str(program), *self.libraries]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"link failed: {done.stderr.strip().splitlines()[-1:]}")


def run_tests(program, tests):
    """True if all named tests pass. A crash or a hang is a failure of the tests, which is what a mutant should give."""
    environment = dict(os.environ, GTEST_FAIL_FAST="1")
    command = [str(program), f"--gtest_filter={tests}", "--gtest_brief=1"]
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    # A filter that selects nothing would pass everything.
    if b"0 tests from 0 test suites" in done.stdout:
        raise Failure(f"no test matches {tests}")
    return done.returncode == 0


def judge(tree, mutant):
    """"killed" or "SURVIVED"."""
    text = (tree.source / "asymkv" / mutant.file).read_text()
    mutated = mutant.applied(text)
    with tempfile.TemporaryDirectory(dir=tree.work) as folder_name:
        folder = pathlib.Path(folder_name)
        patched = folder / "asymkv" / mutant.file
        patched.parent.mkdir(parents=True)
        patched.write_text(mutated)
        objects = []
        for unit in tree.units():
            changed = tree.includes_file(unit, mutant.file)
            objects.append(tree.compile(unit, folder, folder) if changed else tree.object_of(unit, tree.work))
        tree.link(objects, folder / "tests")
        return "SURVIVED" if run_tests(folder / "tests", mutant.tests) else "killed"


def timed(function, *arguments):
    start = time.monotonic()
    try:
        verdict = function(*arguments)
    except Failure as failure:
        verdict = f"ERROR: {failure}"
    return verdict, time.monotonic() - start


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=pathlib.Path, default=here.parent.parent / "src", help="include root")
    parser.add_argument("--mutants", type=pathlib.Path, default=here / "mutants.toml")
    parser.add_argument("--compiler", default=os.environ.get("CXX", "c++"))
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", help="run the mutants whose name contains this text")
    options = parser.parse_args()
    mutants = [Mutant(**entry) for entry in tomllib.loads(options.mutants.read_text())["mutant"]]
    if options.only:
        mutants = [mutant for mutant in mutants if options.only in mutant.name]
    if not mutants:
        sys.exit("no mutant selected")
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        tree = Tree(options.source.resolve(), pathlib.Path(work), shlex.split(options.compiler))
        objects = list(pool.map(lambda unit: tree.compile(unit, tree.work), tree.units()))
        tree.link(objects, tree.work / "clean")
        filters = ":".join(sorted({mutant.tests for mutant in mutants}))
        if not run_tests(tree.work / "clean", filters):
            sys.exit("the clean tree fails the tests that the mutants should fail")
        print(f"{'clean tree':58} passes", flush=True)
        verdicts = []
        for mutant, (verdict, seconds) in zip(mutants, pool.map(lambda m: timed(judge, tree, m), mutants)):
            print(f"{mutant.name:58} {verdict} ({seconds:.0f} s)", flush=True)
            verdicts.append(verdict)
    survivors = [verdict for verdict in verdicts if verdict != "killed"]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} mutants killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
