#!/usr/bin/env python3
"""Makes the golden files of this folder with the reference, the `tokenizers` package. Same output on every run.

Usage: tests/golden/tokenizer/make_golden.py     (needs the reference environment of scripts/setup_reference_env.sh and
the two models of scripts/fetch_model.py)

  strings.json    1,000 mixed strings
  small.json      a tokenizer trained here: Qwen2's pattern, NFC, added tokens with every flag
  <name>.json     for each tokenizer what the reference answers: ids with special tokens parsed, ids without (only
                  where different), decoded text (only where it is not the string), and texts of random ids
  variants.json   small.json under merge patches (one construct each), on the strings with `index % 24 == 0`
  llama2.json, gemma.json          SentencePiece's kind as Llama 2 and Gemma publish it, trained here
  sentencepiece_variants.json      llama2.json under merge patches, as variants.json
"""

import copy
import json
import os
import pathlib
import random
import unicodedata

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
MODELS = pathlib.Path(os.environ.get("ASYMKV_MODEL_DIR") or pathlib.Path.home() / ".cache/asymkv/models")
NUM_STRINGS = 1000
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

PROSE = """The quick brown fox jumps over the lazy dog. It's what they've said; we'll see, I'd DON'T can'T HE'LL you're.
A cache keeps the keys and the values of every token, so that attention reads them again instead of computing them.
Il était une fois un garçon naïf à l'œuvre. Größe, Straße, Fußgänger. Zażółć gęślą jaźń. Tiếng Việt có dấu.
Привет, мир! Как дела? Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก 안녕하세요 세계
你好，世界。机器学习很有意思。今日は世界、日本語のテキスト。カタカナとひらがな。𠀀𠮷野家
Janet's ducks lay 16 eggs per day. 3.14159 1,234,567 0x7fff 1e-10 ٣٤٥ ४५६ ½ Ⅳ ² ①""".split("\n")
CODE = [
    "def f(x):\n    return x ** 2  # square\n",
    "for (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n}\n",
    "#include <vector>\r\nint main() { return 0; }\r\n",
    "SELECT * FROM t WHERE a='it''s' AND b>=10;",
    "let x = |a: &str| -> Option<u8> { a.bytes().next() };",
    "<div class=\"a\">&nbsp;</div>\n\n\n",
    "if [ -n \"$X\" ]; then echo \"${X%%.*}\" >> /dev/null; fi",
    "x = {'a': [1, 2, 3], \"b\": None}\n\n\n    \n",
]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪🇫🇷", "❤️", "🏳️‍🌈", "1️⃣", "🧑🏿‍🚀", "☕️", "🫠", "‍", "\ufe0f"]
MARKS = ["e\u0301", "a\u0323\u0302", "a\u0302\u0323", "q\u0307\u0323", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0344",
         "\u212b", "\u2126", "\u0958", "\ufb1d", "\u1f82", "o\u031b\u0323", "\u0041\u030a", "\u0f71\u0f72\u0f74",
         "\u09c7\u09be", "\u0300\u0315\u0316\u0300", "\U0001d15e", "\u2adc", "\u0929", "\u00c5\u0323"]
CONTROL = ["\x00", "\x01\x02", "\x07", "\x08", "\x0b", "\x0c", "\x1b[0m", "\x1c\x1d\x1e\x1f", "\x7f", "\x80", "\x85",
           "\x9f", "\xa0", "\xad", "\u180e", "\u200b", "\u200c", "\u200e", "\u2028", "\u2029", "\u202f", "\u3000",
           "\ufeff", "\u2060"]
LOOKS_INVALID = ["\ufffd", "\ufffd\ufffd", "Ã©", "â\x80\x99", "ï»¿", "\uffff", "\ufffe", "\U0010ffff", "\U000fffff",
                 "\ue000", "\ufdd0", "\\xff\\xfe", "%C3%28", "&#xD800;", "À\x80", "\u0378", "Ġ", "Ċ", "Ġthe Ċ", "ĀāŃ"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|", "|im_end|>", "<tool_call>", "</tool_call>",
           "<|fim_prefix|>", "<|bos|>", "<|eos|>", "<|pad|>", "<repo_name>", "<file_sep>", "<filename>", "[PAD151665]",
           "<|im_start|><|im_start|>", "<<|im_end|>>", "<l>", "<r>", "<w>", "<n\u00e9>", "<ne\u0301>", "<x y>", "<LR>"]
SPACES = [" ", "  ", "   ", "    ", "\n", "\r\n", "\t", "\n\n", " \n ", "\t \t", "\r", "\u00a0 ", " \u2003", " " * 17,
          "\n" * 9, "\t" * 5, " \r\n\r\n  "]


def digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(rng.choice([1, 2, 3, 4, 7, 20, 60])))


def any_character(rng: random.Random) -> str:
    while True:
        code = rng.choice([rng.randrange(0x250), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x30000)])
        # Unassigned characters would test the libraries' Unicode versions, not the tokenizer.
        if not 0xD800 <= code < 0xE000 and unicodedata.category(chr(code)) != "Cn":
            return chr(code)


def fragment(rng: random.Random) -> str:
    kind = rng.randrange(11)
    if kind <= 1:
        line = rng.choice(PROSE)
        begin = rng.randrange(len(line))
        return line[begin : begin + rng.randrange(1, 40)]
    if kind == 2:
        line = rng.choice(CODE)
        begin = rng.randrange(len(line))
        return line[begin : begin + rng.randrange(1, 40)]
    if kind == 3:
        return digits(rng)
    if kind == 4:
        return "".join(any_character(rng) for _ in range(rng.randrange(1, 7)))
    return rng.choice([EMOJI, MARKS, CONTROL, LOOKS_INVALID, SPECIAL, SPACES][kind - 5])


def make_strings() -> list[str]:
    rng = random.Random(1)
    strings = ["", *PROSE, *CODE, *EMOJI, *MARKS, *CONTROL, *LOOKS_INVALID, *SPECIAL, *SPACES, "a" * 300, "ab" * 150]
    while len(strings) < NUM_STRINGS:
        strings.append("".join(fragment(rng) for _ in range(rng.randrange(1, 7))))
    return strings


def train_small() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([*PROSE, *CODE, *EMOJI, *MARKS] * 2, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<|im_start|>", "<|im_end|>", "<x y>")])
    tokenizer.add_tokens([
        AddedToken("<l>", lstrip=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False),
        AddedToken("<w>", single_word=True, normalized=False),
        AddedToken("fox", single_word=True, normalized=True),
        AddedToken("<n\u00e9>", normalized=True),
        AddedToken("<LR>", lstrip=True, rstrip=True, normalized=True),
        AddedToken("<|im_start", normalized=False),
    ])
    start, end = (tokenizer.token_to_id(t) for t in ("<|im_start|>", "<|im_end|>"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair="$A $B",
        special_tokens=[("<|im_start|>", start), ("<|im_end|>", end)],
    )
    return tokenizer


MARK = "\u2581"


def train_sentencepiece(normalizer, pre_tokenizer, decoder, added: list) -> Tokenizer:
    """BPE on characters with byte_fallback; most characters of the strings are spelled in bytes."""
    named = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learner = Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = normalizer, pre_tokenizers.Split(MARK, "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=700, limit_alphabet=90, special_tokens=named + byte_tokens, show_progress=False)
    learner.train_from_iterator([*PROSE, *CODE] * 2, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(rule) for rule in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(learned["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in named])
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def train_llama2() -> Tokenizer:
    normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    added = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, rstrip=True, normalized=False),
             AddedToken("<w>", normalized=True), AddedToken("fox", single_word=True, normalized=True)]
    return train_sentencepiece(normalizer, None, decoder, added)


def train_gemma() -> Tokenizer:
    decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    # Gemma publishes its runs of spaces and newlines as added tokens that are not special.
    added = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False),
             *(AddedToken(token, normalized=False) for token in ("\n\n", "\n\n\n", MARK * 2, MARK * 3, MARK * 4, "<tool_call>"))]
    return train_sentencepiece(
        normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), decoder, added)


def sentencepiece_patches(llama2: dict) -> dict[str, dict]:
    def metaspace(scheme: str, split: bool) -> dict:
        step = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}
        return {"normalizer": None, "pre_tokenizer": step}

    named = llama2["added_tokens"][:3]
    some_bytes = {f"<0x{byte:02X}>": None for byte in (0xE4, 0xC3, 0x9F, 0x00)}
    fallback, fuse = {"type": "ByteFallback"}, {"type": "Fuse"}
    spaces = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    strip = lambda start: {"type": "Strip", "content": " ", "start": start, "stop": 0}
    decoder = lambda *steps: {"decoder": {"type": "Sequence", "decoders": list(steps)}}
    marks = lambda scheme: {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": True}
    return {
        **{f"metaspace_{scheme}_{split}": metaspace(scheme, split)
           for scheme in ("first", "always", "never") for split in (True, False)},
        "metaspace_behind_prepend": {"pre_tokenizer": metaspace("always", True)["pre_tokenizer"]},
        "metaspace_behind_digits": {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, metaspace("first", False)["pre_tokenizer"]]}},
        "nfc_first": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, llama2["normalizer"]]}},
        "no_normalizer": {"normalizer": None},
        "ignore_merges": {"model": {"ignore_merges": True}, **metaspace("always", True)},
        "bytes_missing": {"model": {"vocab": some_bytes}, "added_tokens": named},
        "bytes_missing_not_fused": {"model": {"vocab": some_bytes, "fuse_unk": False}, "added_tokens": named},
        "bytes_missing_dropped": {"model": {"vocab": some_bytes, "unk_token": None}, "added_tokens": named},
        "decoder_metaspace": decoder(marks("always"), fallback, fuse),
        "decoder_metaspace_never": decoder(marks("never"), fallback),
        "decoder_strip_3": decoder(spaces, fallback, fuse, strip(3)),
        "decoder_strip_0": decoder(spaces, fallback, fuse, strip(0)),
    }


def from_gguf(path: pathlib.Path) -> Tokenizer:
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
    tokens, types = get("tokens"), get("token_type")
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types)) if kind != gguf.TokenType.UNUSED}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(rule.split(" ")) for rule in get("merges")]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if get("pre") == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(QWEN2), "isolated"), byte_level])
    elif get("pre") == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    else:
        raise ValueError(get("pre"))
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, types):
        if kind == gguf.TokenType.CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, normalized=False)])
        elif kind == gguf.TokenType.USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer


def golden(tokenizer: Tokenizer, strings: list[str], num_random: int = 100) -> dict:
    ids = [tokenizer.encode(s).ids for s in strings]
    tokenizer.encode_special_tokens = True
    plain = [tokenizer.encode(s).ids for s in strings]
    tokenizer.encode_special_tokens = False
    decoded = [tokenizer.decode(row, skip_special_tokens=False) for row in ids]
    skipped = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
    rng = random.Random(2)
    known = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    rows = [[rng.choice(known) for _ in range(rng.randrange(1, 12))] for _ in range(num_random)]
    differing = lambda values, base: {str(i): v for i, (v, b) in enumerate(zip(values, base)) if v != b}
    return {
        "ids": ids,
        "plain_ids": differing(plain, ids),
        "decoded": differing(decoded, strings),
        "decoded_without_special": differing(skipped, decoded),
        "random": [[row, tokenizer.decode(row, skip_special_tokens=False)] for row in rows],
    }


def split_step(pattern: dict, behavior: str, invert: bool = False) -> dict:
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def pre(*steps: dict, add_prefix_space: bool = False, use_regex: bool = False) -> dict:
    last = {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, last]}}


def patches(small: dict) -> dict[str, dict]:
    """JSON merge patches (RFC 7396) of small.json."""
    dropped = {"vocab": {"!": None, "1": None, "Ġ": None}}
    touching = lambda rule: any(c in part for part in rule for c in "!1Ġ")
    dropped["merges"] = [rule for rule in small["model"]["merges"] if not touching(rule)]
    dropped["vocab"].update({t: None for t in small["model"]["vocab"] if any(c in t for c in "!1Ġ")})
    # Without its holes the vocabulary would have to be renumbered: added tokens are numbered behind its size.
    behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    result = {
        "gpt2": pre(use_regex=True),
        "gpt2_prefix_space": pre(add_prefix_space=True, use_regex=True),
        "no_pattern": pre(),
        "digits": pre({"type": "Digits", "individual_digits": False}, use_regex=True),
        "digits_prefix_space": pre({"type": "Digits", "individual_digits": True}, add_prefix_space=True),
        "ignore_merges": {"model": {"ignore_merges": True}},
        "no_normalizer": {"normalizer": None},
        "three_digits": pre(split_step({"Regex": r"\p{N}{1,3}"}, "Isolated"), use_regex=True),
        "look_behind": pre(split_step({"Regex": r"(?<=[a-z])(?=[A-Z])|(?<!\d)\w"}, "Isolated")),
        "words": pre(split_step({"Regex": r"[\w-]+|[^\s\w]"}, "Isolated", True)),
        "unknown_dropped": {"model": dropped, "added_tokens": [], "post_processor": None},
        "unknown_token": {"model": {**dropped, "unk_token": "a"}, "added_tokens": [], "post_processor": None},
        "unknown_fused": {
            "model": {**dropped, "unk_token": "a", "fuse_unk": True}, "added_tokens": [], "post_processor": None},
    }
    for behavior in behaviors:
        result[f"space_{behavior}"] = pre(split_step({"String": " "}, behavior))
        result[f"inverted_{behavior}"] = pre(split_step({"Regex": r"\s"}, behavior, True))
    return result


def merge_patch(target, patch):
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merge_patch(target.get(key), value)
    return target


def make_variants(base: dict, patched: dict[str, dict], strings: list[str]) -> dict:
    variants = {}
    for name, patch in patched.items():
        tokenizer = Tokenizer.from_str(json.dumps(merge_patch(copy.deepcopy(base), patch)))
        variants[name] = {"patch": patch, "golden": golden(tokenizer, strings[::24], 5)}
    return variants


def write(name: str, content) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    # One entry a line keeps the file readable and its changes small.
    text = text.replace("],[", "],\n[") if name != "strings.json" else text.replace('","', '",\n"')
    (FOLDER / name).write_text(text + "\n", encoding="utf-8")
    print(name, len(text.encode()))


def main() -> None:
    strings = make_strings()
    small = train_small()
    small_json = json.loads(small.to_str())
    write("strings.json", strings)
    write("small.json", small_json)
    write("small_golden.json", golden(small, strings))
    write("byte_golden.json", golden(Tokenizer.from_file(str(ROOT / "models/probe-robust/tokenizer.json")), strings))
    write("smollm2_golden.json", golden(from_gguf(MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"), strings))
    write("qwen2_golden.json", golden(from_gguf(MODELS / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"), strings))
    write("variants.json", make_variants(small_json, patches(small_json), strings))
    llama2, gemma = train_llama2(), train_gemma()
    llama2_json = json.loads(llama2.to_str())
    write("llama2.json", llama2_json)
    write("llama2_golden.json", golden(llama2, strings))
    write("gemma.json", json.loads(gemma.to_str()))
    write("gemma_golden.json", golden(gemma, strings))
    write("sentencepiece_variants.json", make_variants(llama2_json, sentencepiece_patches(llama2_json), strings))


if __name__ == "__main__":
    main()
