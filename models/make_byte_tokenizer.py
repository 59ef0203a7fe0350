#!/usr/bin/env python3
"""Writes the tokenizer.json and tokenizer_config.json of the embedded byte-level models.

Their vocabulary is the 256 byte values (the id is the value), then <|bos|> 256, <|eos|> 257 and <|pad|> 258; the
embedding is padded to 264 rows. Written as an ordinary Hugging Face tokenizer without merges, it needs no special case
in any reader. Standard library only.

Usage: models/make_byte_tokenizer.py FOLDER...    (for example models/probe-robust models/probe-fragile)
"""

import json
import pathlib
import sys

SPECIAL = {"<|bos|>": 256, "<|eos|>": 257, "<|pad|>": 258}


def byte_level_alphabet() -> list[str]:
    """GPT-2's printable character for each byte value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def tokenizer() -> dict:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for token, i in SPECIAL.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, *text],
            "pair": [bos, *text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [256], "tokens": ["<|bos|>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {char: byte for byte, char in enumerate(byte_level_alphabet())},
            "merges": [],
        },
    }


CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|bos|>",
    "eos_token": "<|eos|>",
    "pad_token": "<|pad|>",
    "clean_up_tokenization_spaces": False,
    "model_max_length": 8192,
}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(pathlib.Path, sys.argv[1:]):
        for name, content in (("tokenizer.json", tokenizer()), ("tokenizer_config.json", CONFIG)):
            text = json.dumps(content, ensure_ascii=False, indent=1)
            (folder / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
