#!/usr/bin/env python3
"""Builds deliberately broken copies of the engine's paths and expects the built tests to catch each of them.

For every entry of path_mutants.toml one .cc file is patched in a copy and compiled with the flags of the build tree; its
object stands before the libraries in the test program's link, so that the clean one is never taken from them. At least
one of the named tests must fail; the clean program must pass them. Exits 1 on a survivor, on a text that does not match
once, or on a mutant that does not compile.
"""

import argparse
import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import tomllib

import run_mutants
from run_mutants import Failure

SOURCE = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class PathMutant(run_mutants.Mutant):
    program: str


class BuiltTree:
    """A configured and built Ninja tree."""

    def __init__(self, build):
        self.build = build.resolve()
        entries = json.loads((self.build / "compile_commands.json").read_text())
        self.compile_entries = {pathlib.Path(entry["directory"], entry["file"]).resolve(): entry for entry in entries}

    def run(self, command, what):
        done = subprocess.run(command, cwd=self.build, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{what}: {done.stderr.strip().splitlines()[:3]}")

    def compile(self, original, patched, target):
        """Compiles patched as if it stood where original does."""
        entry = self.compile_entries.get(original)
        if entry is None:
            raise Failure(f"{original} is not compiled in {self.build}")
        words = shlex.split(entry["command"])
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c") + 1] = str(patched)
        self.run([word for word in words if word != "-Werror"], "does not compile")

    def link(self, program, first_object, target):
        """The program's own link command with another output and one object put before its own."""
        listed = subprocess.run(["ninja", "-t", "commands", program], cwd=self.build, capture_output=True, text=True,
                                check=False)
        if listed.returncode != 0:
            raise Failure(f"ninja knows no target {program}")
        words = shlex.split(listed.stdout.strip().splitlines()[-1].removeprefix(": && ").split(" && ")[0])
        output = words.index("-o")
        words[output + 1] = str(target)
        words.insert(output, str(first_object))
        self.run(words, "link failed")

    def program(self, name):
        found = [path for path in self.build.rglob(name) if path.is_file()]
        if len(found) != 1:
            raise Failure(f"{name} is built {len(found)} times under {self.build}; build it first")
        return found[0]


def judge(tree, mutant):
    original = SOURCE / "src" / "asymkv" / mutant.file
    text = original.read_text()
    mutated = mutant.applied(text)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = pathlib.Path(folder_name)
        patched = folder / original.name
        patched.write_text(mutated)
        tree.compile(original, patched, folder / "mutant.o")
        tree.link(mutant.program, folder / "mutant.o", folder / "tests")
        return "SURVIVED" if run_mutants.run_tests(folder / "tests", mutant.tests) else "killed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "release", help="built Ninja tree")
    parser.add_argument("--mutants", type=pathlib.Path, default=pathlib.Path(__file__).with_name("path_mutants.toml"))
    parser.add_argument("--only", help="run the mutants whose name contains this text")
    options = parser.parse_args()
    mutants = [PathMutant(**entry) for entry in tomllib.loads(options.mutants.read_text())["mutant"]]
    mutants = [mutant for mutant in mutants if options.only is None or options.only in mutant.name]
    if not mutants:
        sys.exit("no mutant selected")
    tree = BuiltTree(options.build)
    for program, tests in sorted({(mutant.program, mutant.tests) for mutant in mutants}):
        if not run_mutants.run_tests(tree.program(program), tests):
            sys.exit(f"the clean {program} fails the tests that the mutants should fail")
    print(f"{'clean tree':58} passes", flush=True)
    survivors = 0
    for mutant in mutants:
        verdict, seconds = run_mutants.timed(judge, tree, mutant)
        survivors += verdict != "killed"
        print(f"{mutant.name:58} {verdict} ({seconds:.0f} s)", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants killed")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
