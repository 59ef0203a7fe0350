"""RoPE frequencies and attention factors of transformers' ROPE_INIT_FUNCTIONS: tests/golden/parity/rope-frequencies.json.

    python tests/parity/make_rope_golden.py

Each case holds the config.json keys that matter and what transformers made of them, in FP32.
"""

import json

from transformers import LlamaConfig, Ministral3Config, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from make_tiny_models import GOLDEN


def llama(rope, head_dim=64, max_positions=32768):
    return LlamaConfig(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim, vocab_size=264,
                       intermediate_size=96, num_hidden_layers=1, max_position_embeddings=max_positions,
                       rope_parameters=rope)


def phi3(rope, max_positions, original):
    return Phi3Config(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=264,
                      intermediate_size=96, num_hidden_layers=1, max_position_embeddings=max_positions, pad_token_id=0,
                      bos_token_id=1, eos_token_id=2, original_max_position_embeddings=original, rope_parameters=rope)


def yarn(**more):
    return dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32768, **more)


SHORT = [1.0 + 0.01 * p * p for p in range(16)]
LONG = [1.0 + 0.5 * p * p for p in range(16)]
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=SHORT, long_factor=LONG)
# name: (configuration, longest sequence)
CASES = {
    "linear": (llama(dict(rope_type="linear", rope_theta=10000.0, factor=8.0)), 100),
    "llama3": (llama(dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
                          high_freq_factor=4.0, original_max_position_embeddings=8192)), 100),
    "yarn": (llama(yarn(), 128, 131072), 100),
    "yarn-betas": (llama(yarn(beta_fast=24.0, beta_slow=2.0, truncate=False), 128, 131072), 100),
    "yarn-attention-factor": (llama(yarn(attention_factor=1.25), 96, 131072), 100),
    "yarn-mscale": (llama(yarn(mscale=0.7, mscale_all_dim=0.4), 64, 131072), 100),
    "yarn-ministral3": (Ministral3Config(hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
                                         vocab_size=264, intermediate_size=96, num_hidden_layers=1, pad_token_id=0), 9),
    "longrope-short": (phi3(LONGROPE, 131072, 4096), 4096),
    "longrope-long": (phi3(LONGROPE, 131072, 4096), 4097),
    "longrope-attention-factor": (phi3(dict(LONGROPE, attention_factor=1.5), 131072, 4096), 4097),
}


def main():
    cases = []
    for name, (config, seq_len) in CASES.items():
        rope = config.rope_parameters
        frequencies, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, seq_len=seq_len)
        # config.json as transformers would save it, without what has no bearing.
        saved = json.loads(config.to_json_string(use_diff=False))
        keys = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
                "rope_parameters", "original_max_position_embeddings")
        cases.append({"name": name, "config": {key: saved[key] for key in keys if key in saved},
                      "num_positions": seq_len, "frequencies": [float(f) for f in frequencies],
                      "attention_factor": factor})
        print(name, factor, float(frequencies[0]), float(frequencies[-1]))
    (GOLDEN / "rope-frequencies.json").write_text(json.dumps({"made_by": "tests/parity/make_rope_golden.py",
                                                              "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
