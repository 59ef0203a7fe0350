#!/usr/bin/env python3
"""Fetches the vocabularies of published models, with texts and their ids, and prints the folder that holds them.

    scripts/fetch_vocabs.py

They are the tokenizer tests of llama.cpp (MIT), as the source archive of llama-cpp-python on PyPI carries them; the
archive (77 MB) is checked by its SHA-256. Cached like the models (ASYMKV_MODEL_DIR, else ~/.cache/asymkv/models), in
the folder vocabs: a second call downloads nothing.
"""

import argparse
import pathlib
import shutil
import tarfile
import tempfile

import fetch_model

REQUIREMENT = "llama-cpp-python==0.3.36"
ARCHIVE = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MARK = "/llama.cpp/models/ggml-vocab-"


def download(folder):
    fetch_model.pip_download(REQUIREMENT, folder, form=("--no-binary", "llama-cpp-python"))
    archive = pathlib.Path(folder) / ARCHIVE
    digest = fetch_model.sha256_of(archive)
    if digest != SHA256:
        fetch_model.fail(f"{ARCHIVE} has SHA-256 {digest}, expected {SHA256}")
    return archive


def extract(archive, folder):
    with tarfile.open(archive) as tar:
        for member in tar:
            if MARK in member.name and member.isfile():
                with tar.extractfile(member) as source, open(folder / pathlib.PurePath(member.name).name, "wb") as out:
                    shutil.copyfileobj(source, out)


def fetch(target):
    if target.is_dir():  # put in place whole, by one rename
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vocabs.", dir=target.parent) as scratch:
        archive = download(scratch)
        unpacked = pathlib.Path(scratch) / "vocabs"
        unpacked.mkdir()
        extract(archive, unpacked)
        unpacked.rename(target)


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    target = fetch_model.default_folder() / "vocabs"
    try:
        fetch(target)
    except (OSError, tarfile.TarError) as error:
        fetch_model.fail(str(error))
    except KeyboardInterrupt:
        fetch_model.fail("interrupted")
    print(target)


if __name__ == "__main__":
    main()
