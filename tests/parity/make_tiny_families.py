"""Tiny random models of the families beyond qwen2 and llama, as transformers writes them (BF16), and the same weights
as GGUF files with llama.cpp's names: tests/golden/parity/tiny-NAME/ and tests/golden/parity/tiny-NAME.gguf.

    python tests/parity/make_tiny_families.py [NAME...]

Windows, original context lengths and soft caps are small, so that prompts of 11 to 97 bytes and 64 new tokens meet each
of them. tiny-phi3-long has the weights of tiny-phi3 and an original length below every prompt: LongRoPE's long factors.
"""

import json
import math
import pathlib
import sys

import gguf
import numpy
import torch
import transformers

from make_tiny_models import GOLDEN, randomise, save

SIZE = dict(vocab_size=264, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, bos_token_id=256, eos_token_id=257, pad_token_id=258, rms_norm_eps=1e-6)
NUM_PAIRS = 8  # head_dim 16
GEMMA = dict(SIZE, head_dim=16, num_hidden_layers=4, query_pre_attn_scalar=16, sliding_window=20)


def longrope(original):
    short = [1.0 + 0.05 * pair for pair in range(NUM_PAIRS)]
    long = [1.0 + 0.6 * pair for pair in range(NUM_PAIRS)]
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=short, long_factor=long,
                original_max_position_embeddings=original)


def phi3(original):
    return transformers.Phi3Config(**{**SIZE, "hidden_size": 64}, num_hidden_layers=2, original_max_position_embeddings=original,
                                   rope_parameters=longrope(original))


def ministral3():
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=4.0,
                beta_slow=1.0, llama_4_scaling_beta=0.1)
    return transformers.Ministral3Config(**SIZE, num_hidden_layers=2, head_dim=16, rope_parameters=rope,
                                         tie_word_embeddings=True)


def gemma3():
    ropes = {"full_attention": dict(rope_type="linear", factor=4.0, rope_theta=50000.0),
             "sliding_attention": dict(rope_type="default", rope_theta=1000.0)}
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return transformers.Gemma3TextConfig(**GEMMA, layer_types=kinds, rope_parameters=ropes)


# Name: configuration, seed, GGUF architecture (None: published GGUF files of it are llama's).
MODELS = {
    "tiny-qwen3": (lambda: transformers.Qwen3Config(**SIZE, num_hidden_layers=2, head_dim=16, rope_theta=10000.0,
                                                    tie_word_embeddings=True), 21, "qwen3"),
    "tiny-mistral": (lambda: transformers.MistralConfig(**SIZE, num_hidden_layers=2, head_dim=16, sliding_window=20,
                                                        rope_theta=10000.0), 22, None),
    "tiny-gemma3": (gemma3, 23, "gemma3"),
    "tiny-gemma2": (lambda: transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=4.0, final_logit_softcapping=8.0,
                                                      rope_theta=10000.0), 24, "gemma2"),
    "tiny-phi3": (lambda: phi3(256), 25, "phi3"),
    "tiny-phi3-long": (lambda: phi3(8), 25, None),
    "tiny-ministral3": (ministral3, 26, None),
}

RENAMED = {"embed_tokens": "token_embd", "lm_head": "output", "input_layernorm": "attn_norm",
           "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
           "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv", "self_attn.q_norm": "attn_q_norm",
           "self_attn.k_norm": "attn_k_norm", "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate",
           "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name, gemma):
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "norm":
        return "output_norm.weight"
    prefix = ""
    if parts[0] == "layers":
        prefix, parts = f"blk.{parts[1]}.", parts[2:]
    stem = ".".join(parts[:-1])
    norms = ({"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm"} if gemma else {"post_attention_layernorm": "ffn_norm"})
    return f"{prefix}{norms.get(stem) or RENAMED[stem]}.{parts[-1]}"


def add_metadata(writer, config):
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 256)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 257)
    if config.model_type.startswith("gemma"):
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def add_rope(writer, config):
    ropes = config.rope_parameters
    writer.add_rope_freq_base(ropes.get("full_attention", ropes)["rope_theta"])
    if config.model_type == "gemma3_text":
        writer.add_float32("gemma3.rope.freq_base_swa", ropes["sliding_attention"]["rope_theta"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(ropes["full_attention"]["factor"])
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
    if config.model_type == "phi3":
        original = ropes["original_max_position_embeddings"]
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
        writer.add_rope_dimension_count(16)
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", numpy.array(ropes[f"{kind}_factor"], dtype=numpy.float32))


def write_gguf(model, name, architecture):
    config = model.config
    gemma = config.model_type.startswith("gemma")
    path = GOLDEN / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    add_metadata(writer, config)
    add_rope(writer, config)
    for key, tensor in sorted(model.state_dict().items()):
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(key, gemma), values + 1 if gemma else values)
        else:
            writer.add_tensor(gguf_name(key, gemma), gguf.quantize(values, gguf.GGMLQuantizationType.BF16),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(path.name, path.stat().st_size)


def main():
    for name in sys.argv[1:] or MODELS:
        make_config, seed, architecture = MODELS[name]
        config = make_config()
        model = randomise(transformers.AutoModelForCausalLM.from_config(config), seed)
        if config.model_type.startswith("gemma"):  # their norm weights are stored less one
            for key, parameter in model.named_parameters():
                if "norm" in key:
                    parameter.data -= 1
        save(model, name, torch.bfloat16)
        if name == "tiny-phi3-long":  # the same tensors
            weights = GOLDEN / name / "model.safetensors"
            weights.unlink()
            weights.symlink_to("../tiny-phi3/model.safetensors")
        if architecture:
            if name == "tiny-gemma3":  # what GGUF can say: every third layer sees all keys
                assert [kind == "full_attention" for kind in config.layer_types] == [False, False, True, False]
            if name == "tiny-gemma2":
                assert [kind == "full_attention" for kind in config.layer_types] == [False, True, False, True]
            write_gguf(model, name, architecture)
        print(json.dumps(config.rope_parameters))


if __name__ == "__main__":
    main()
