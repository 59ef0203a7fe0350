#!/usr/bin/env python3
"""Runs clang-tidy over the sources of src/ and apps/, changed files first, as far as a time budget reaches.

    tools/tidy.py                  every source
    tools/tidy.py --budget-s 300   changed files, then the others from a place that moves with every commit

One run over the whole tree takes longer than continuous integration can wait. Under a budget the changed files (against
origin/main, else the newest 20 commits) come first and the rest follows in rotation, so that successive commits
cover the tree; the last line says how many of how many files were checked. Exit status 1 if clang-tidy found anything.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False).stdout


def sources(build):
    """Sources of the library and the program that the build compiles, relative to the root, tests left out."""
    entries = json.loads((build / "compile_commands.json").read_text())
    files = {os.path.relpath(entry["file"], ROOT) for entry in entries}
    return sorted(f for f in files if f.startswith(("src/", "apps/")) and f.endswith(".cc") and not f.endswith("_test.cc"))


def ordered(files):
    """(changed files, the others rotated by the number of commits)."""
    base = git("merge-base", "HEAD", "origin/main").strip()
    if not base or base == git("rev-parse", "HEAD").strip():
        base = git("rev-list", "--max-count=20", "HEAD").split()[-1]
    names = set(git("diff", "--name-only", base, "--").split())
    changed = [f for f in files if f in names or f.removesuffix(".cc") + ".h" in names]
    rest = [f for f in files if f not in changed]
    start = int(git("rev-list", "--count", "HEAD") or 0) * 7 % len(rest) if rest else 0
    return changed, rest[start:] + rest[:start]


def tidy(build, name):
    result = subprocess.run(["clang-tidy", "-p", str(build), "--quiet", name], capture_output=True, text=True, cwd=ROOT,
                            check=False)
    return name, result.returncode, result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="a configured build tree")
    parser.add_argument("--budget-s", type=float, default=None, help="start no file after this many seconds")
    parser.add_argument("files", nargs="*", help="only these sources")
    arguments = parser.parse_args()
    if not (arguments.build / "compile_commands.json").is_file():
        sys.exit(f"tidy.py: {arguments.build} has no compile_commands.json; configure a preset first")
    changed, rest = ordered(sources(arguments.build)) if not arguments.files else (arguments.files, [])
    deadline = None if arguments.budget_s is None else time.monotonic() + arguments.budget_s
    failed, checked = [], 0

    def one(name):
        return tidy(arguments.build, name) if deadline is None or time.monotonic() < deadline else (name, None, "")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, status, output in pool.map(one, changed + rest):
            checked += status is not None
            if status not in (None, 0):
                failed.append(name)
                print(output, flush=True)
    print(f"clang-tidy: {checked} of {len(changed) + len(rest)} files checked ({len(changed)} of them changed), "
          f"{len(failed)} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
