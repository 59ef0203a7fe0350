#!/usr/bin/env python3
"""Cross-builds the host kernels and their tests for 64-bit Arm and runs them under emulation: the NEON code path.

    tools/neon.py [--filter GTEST_FILTER]

Takes Debian's aarch64 compiler, emulator and libraries (root; the libraries are unpacked into build/neon, not installed).
About two minutes to build and three to run. The units are those of tests/mutants/run_mutants.py.
"""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
import run_mutants  # noqa: E402

TOOLS = ["g++-aarch64-linux-gnu", "qemu-user-static"]
LIBRARIES = ["libhwy1", "libhwy-dev", "libfmt9", "libfmt-dev", "libssl3", "libssl-dev", "libgtest-dev", "libgmock-dev"]
NATIVE_HEADERS = ["xxhash.h", "nlohmann", "boost"]  # headers that are the same on every machine


def run(*command, cwd=None):
    subprocess.run(command, cwd=cwd, check=True)


def fetch_libraries(folder):
    """Arm libraries below folder/root, without making this machine's package manager keep the architecture."""
    if (folder / "root").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *TOOLS)
    run("dpkg", "--add-architecture", "arm64")
    try:
        run("apt-get", "update", "-qq")
        run("apt-get", "download", "-qq", *(name + ":arm64" for name in LIBRARIES), cwd=folder)
    finally:
        run("dpkg", "--remove-architecture", "arm64")
    for package in sorted(folder.glob("*.deb")):
        run("dpkg", "-x", str(package), str(folder / "root"))
    (folder / "headers").mkdir(exist_ok=True)
    for name in NATIVE_HEADERS:
        (folder / "headers" / name).symlink_to(pathlib.Path("/usr/include") / name)


def build(folder):
    usr = folder / "root" / "usr"
    libraries = usr / "lib" / "aarch64-linux-gnu"
    headers = [f"-isystem{usr}/include", f"-isystem{usr}/include/aarch64-linux-gnu", f"-isystem{folder}/headers"]
    search = [f"-L{libraries}", f"-Wl,-rpath-link,{libraries}"]
    tree = run_mutants.Tree(ROOT / "src", folder, ["aarch64-linux-gnu-g++"], [*run_mutants.FLAGS, *headers],
                            [*search, *run_mutants.LIBRARIES])
    tree.link([tree.compile(unit, folder) for unit in tree.units()], folder / "tests")
    return libraries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="*", help="which tests; default: all")
    options = parser.parse_args()
    folder = ROOT / "build" / "neon"
    fetch_libraries(folder)
    try:
        libraries = build(folder)
    except run_mutants.Failure as failure:
        sys.exit(f"neon.py: {failure}")
    emulator = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={libraries}"]
    os.execvp(emulator[0], [*emulator, str(folder / "tests"), f"--gtest_filter={options.filter}"])


if __name__ == "__main__":
    main()
