#!/usr/bin/env python3
"""Writes fuzz/corpus/fuzz_config, fuzz_safetensors and fuzz_gguf: tiny valid files for the fuzzers to start from.

Standard library only; the files are deterministic and committed.
"""

import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus"
U32, F32, STRING, ARRAY = 4, 6, 8, 9


def write(target, name, data):
    folder = FOLDER / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def gguf(values, tensors):
    """tensors: (name, dims innermost first, type id, bytes); data aligned to 32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    data = b""
    for name, dims, kind, stored in tensors:
        data += b"\0" * (-len(data) % 32)
        head += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
        head += struct.pack("<IQ", kind, len(data))
        data += stored
    return head + b"\0" * (-len(head) % 32) + data


def tiny_llama(arch):
    """One layer, width 32, one head of 32, vocabulary 2: every tensor of the family."""
    def number(key, n):
        return value(f"{arch}.{key}", U32, struct.pack("<I", n))

    values = [value("general.architecture", STRING, text(arch)), number("embedding_length", 32),
              number("feed_forward_length", 32), number("block_count", 1), number("attention.head_count", 1),
              number("context_length", 64),
              value(f"{arch}.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
              value("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text("b")),
              value("tokenizer.ggml.scores", ARRAY, struct.pack("<IQff", F32, 2, 0.0, 1.0))]
    ones = struct.pack("<32f", *[1.0] * 32)
    q8 = struct.pack("<H", 0x3C00) + bytes(range(32))
    q4 = struct.pack("<H", 0x3C00) + bytes(range(16))
    tensors = [("token_embd.weight", [32, 2], 8, q8 * 2), ("output_norm.weight", [32], 0, ones),
               ("blk.0.attn_norm.weight", [32], 0, ones), ("blk.0.ffn_norm.weight", [32], 0, ones)]
    tensors += [(f"blk.0.{name}.weight", [32, 32], 2, q4 * 32)
                for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    tensors += [(f"blk.0.attn_{side}.bias", [32], 0, ones) for side in "qkv"]
    return gguf(values, tensors)


def block_types():
    sizes = {2: (32, 18), 3: (32, 20), 6: (32, 22), 8: (32, 34), 12: (256, 144), 14: (256, 210), 0: (1, 4), 1: (1, 2),
             30: (1, 2)}
    tensors = [(f"t{kind}", [elems], kind, bytes(i % 256 for i in range(size))) for kind, (elems, size) in sizes.items()]
    return gguf([value("general.alignment", U32, struct.pack("<I", 32))], tensors)


def config(model_type, **changes):
    """A config.json that planner and runtime both read."""
    values = {"model_type": model_type, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "torch_dtype": "bfloat16"}
    if model_type.startswith("gemma"):
        values |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 16}
    else:
        values |= {"hidden_act": "silu"}
    return {key: value for key, value in (values | changes).items() if value != "absent"}


def configs():
    types = ["sliding_attention", "full_attention"] * 2
    linear = {f"linear_{key}": 2 for key in ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim",
                                             "conv_kernel_dim")}
    return {
        "llama": config("llama", head_dim="absent", num_key_value_heads="absent"),
        "qwen2": config("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=2),
        "qwen3": config("qwen3", use_sliding_window=False, sliding_window=None),
        "mistral": config("mistral", sliding_window=16),
        "phi3": config("phi3", sliding_window=128),
        "gemma2": config("gemma2"),
        "gemma3": config("gemma3_text", layer_types=types),
        "nested": {"model_type": "gemma3", "dtype": "bfloat16", "text_config": config("gemma3_text")},
        "two_geometries": config("gemma4_text", layer_types=types, global_head_dim=32, num_global_key_value_heads=1,
                                 attention_k_eq_v=True),
        "hybrid": config("qwen3_next", full_attention_interval=2, **linear),
        "latent": config("deepseek_v3", kv_lora_rank=32, qk_rope_head_dim=8),
        "falcon": config("falcon", multi_query=True, new_decoder_architecture=False, num_kv_heads=4),
        "chatglm": config("chatglm", multi_query_attention=True, multi_query_group_num=2, kv_channels=16),
        "exaone4": config("exaone4", sliding_window=16, sliding_window_pattern="LG"),
    }


def main():
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    write("fuzz_safetensors", "two", safetensors({"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 1], 0, 8),
                                                  "b": entry("BF16", [3], 8, 14)}, bytes(14)))
    write("fuzz_safetensors", "empty", safetensors({}, b""))
    write("fuzz_safetensors", "scalar", safetensors({"s": entry("F16", [], 0, 2), "z": entry("F16", [0, 4], 2, 2)},
                                                    bytes(2)))
    write("fuzz_safetensors", "awq", safetensors({"m.qweight": entry("I32", [64, 1], 0, 256),
                                                  "m.qzeros": entry("I32", [2, 1], 256, 264),
                                                  "m.scales": entry("F16", [2, 8], 264, 296)},
                                                 bytes(i * 7 % 256 for i in range(264)) + struct.pack("<16H", *[0x3C00] * 16)))
    for name, values in configs().items():
        write("fuzz_config", name, json.dumps(values).encode())
    write("fuzz_gguf", "llama", tiny_llama("llama"))
    write("fuzz_gguf", "qwen2", tiny_llama("qwen2"))
    write("fuzz_gguf", "types", block_types())
    write("fuzz_gguf", "empty", gguf([], []))


if __name__ == "__main__":
    main()
