#!/usr/bin/env python3
"""Writes fuzz/corpus/fuzz_tokenizer: small tokenizers with a text behind them (after a byte FF) to start from.

Standard library only; the files are deterministic and committed.
"""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus" / "fuzz_tokenizer"
TEXT = "abab  12 <s>it's caf\u00e9 e\u0301\u0323\n\n<w> \U0001f600".encode()
U32, I32, BOOL, STRING, ARRAY = 4, 5, 7, 8, 9
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer_json(steps, **changes):
    vocab = {token: i for i, token in enumerate(["a", "b", "ab", "abab", "\u0120", "1", "\u00c3", "\u00a9"])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], "ab ab"], "unk_token": "a", "fuse_unk": False}
    model.update(changes.pop("model", {}))
    flags = {"lstrip": True, "rstrip": True, "single_word": True, "normalized": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 8, "content": "<s>", "special": True}, {"id": 9, "content": "<w>", **flags}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel"},
        "model": model,
        **changes,
    }


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sentencepiece_json(normalizer, pre_tokenizer, first_decoder, **changes):
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "ab", "\u2581ab"]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "unk_token": "<unk>",
             "merges": [["a", "b"], ["\u2581", "ab"]], "fuse_unk": True, "byte_fallback": True}
    model.update(changes)
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True},
                         {"id": len(tokens), "content": "<w>", "normalized": True}],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [first_decoder, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": model,
    }


def sentencepiece_files():
    mark = "\u2581"
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    prepend = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": mark}, replace(" ", mark)]}
    metaspace = lambda scheme: {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme, "split": True}
    return {
        "llama2.json": sentencepiece_json(prepend, None, replace(mark, " ")),
        "gemma.json": sentencepiece_json(
            replace(" ", mark), split({"String": " "}, "MergedWithPrevious"), replace(mark, " "), ignore_merges=True),
        "metaspace.json": sentencepiece_json(None, metaspace("first"), metaspace("always"), fuse_unk=False),
    }


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key(name, kind, payload):
    return text("tokenizer.ggml." + name) + struct.pack("<I", kind) + payload


def strings(values):
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def tokenizer_gguf(pre):
    tokens, types = ["a", "b", "ab", "\u0120", "1", "<s>", "<w>", "[X]"], [1, 1, 1, 1, 1, 3, 4, 5]
    values = [
        key("model", STRING, text("gpt2")), key("pre", STRING, text(pre)), key("tokens", ARRAY, strings(tokens)),
        key("token_type", ARRAY, struct.pack(f"<IQ{len(types)}i", I32, len(types), *types)),
        key("merges", ARRAY, strings(["a b"])), key("bos_token_id", U32, struct.pack("<I", 5)),
        key("eos_token_id", U32, struct.pack("<I", 5)), key("add_bos_token", BOOL, b"\1"),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values)
    return head + b"\0" * (-len(head) % 32)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = {
        "qwen2.json": tokenizer_json([split({"Regex": QWEN2}, "Isolated")]),
        "digits.json": tokenizer_json([{"type": "Digits", "individual_digits": True}], normalizer=None),
        "literal.json": tokenizer_json([split({"String": " "}, "MergedWithNext", True)], model={"ignore_merges": True}),
        "classes.json": tokenizer_json([split({"Regex": r"(?<=\d)[\s\S]{1,3}?|[^\w-]+"}, "Contiguous")]),
        "dropped.json": tokenizer_json([], model={"unk_token": None}),
        **sentencepiece_files(),
    }
    for name, content in files.items():
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        (FOLDER / name).write_bytes(data + b"\xff" + TEXT)
    for pre in ("qwen2", "smollm", "gpt-2"):
        (FOLDER / f"{pre}.gguf").write_bytes(tokenizer_gguf(pre) + b"\xff" + TEXT)


if __name__ == "__main__":
    main()
