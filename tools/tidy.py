#!/usr/bin/env python3
"""Runs clang-tidy over sources of src/ and apps/; exit status 1 if it found anything.

    tools/tidy.py                  every source that the build compiles
    tools/tidy.py FILE...          only these

A run over the whole tree takes longer than continuous integration can wait: tools/check.sh names the modules it checks.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def sources(build):
    """Sources of the library and the program that the build compiles, relative to the root, tests left out."""
    entries = json.loads((build / "compile_commands.json").read_text())
    files = {os.path.relpath(entry["file"], ROOT) for entry in entries}
    return sorted(f for f in files if f.startswith(("src/", "apps/")) and f.endswith(".cc") and not f.endswith("_test.cc"))


def tidy(build, name):
    result = subprocess.run(["clang-tidy", "-p", str(build), "--quiet", name], capture_output=True, text=True, cwd=ROOT,
                            check=False)
    return result.returncode, result.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="a configured build tree")
    parser.add_argument("files", nargs="*", help="only these sources")
    arguments = parser.parse_args()
    if not (arguments.build / "compile_commands.json").is_file():
        sys.exit(f"tidy.py: {arguments.build} has no compile_commands.json; configure a preset first")
    names = arguments.files or sources(arguments.build)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for status, output in pool.map(lambda name: tidy(arguments.build, name), names):
            if status != 0:
                failed += 1
                print(output, flush=True)
    print(f"clang-tidy: {len(names)} files checked, {failed} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
