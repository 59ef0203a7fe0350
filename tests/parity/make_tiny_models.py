"""Tiny random models as transformers writes them: tests/golden/parity/tiny-{qwen2,qwen2-sharded,llama,llama-f16}.

    python tests/parity/make_tiny_models.py

qwen2: tied, biases on q, k and v, BF16; the sharded folder holds the same weights in FP32 (several shards and an
index). llama: untied, no bias, head_dim given and unlike hidden_size / heads, FP32; llama-f16 is the same, rounded.
"""

import pathlib
import shutil

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "parity"
COMMON = dict(vocab_size=264, hidden_size=64, intermediate_size=96, num_hidden_layers=2, max_position_embeddings=512,
              bos_token_id=256, eos_token_id=257, pad_token_id=258, rms_norm_eps=1e-6)


def randomise(model, seed):
    """Weights large enough that attention is not flat and the two best logits are well apart; norms around one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1 + 0.1 * noise
        elif name.endswith("bias"):
            parameter.data = (4.0 if "k_proj" in name else 0.3) * noise
        else:
            parameter.data = noise * 1.5 / parameter.shape[-1] ** 0.5
    model.tie_weights()
    return model


def save(model, name, dtype, **options):
    folder = GOLDEN / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    print(name, {path.name: path.stat().st_size for path in sorted(folder.iterdir())})


def main():
    qwen2 = randomise(Qwen2ForCausalLM(Qwen2Config(**COMMON, num_attention_heads=4, num_key_value_heads=2,
                                                   rope_theta=10000.0, tie_word_embeddings=True)), 11)
    save(qwen2, "tiny-qwen2", torch.bfloat16)
    save(qwen2, "tiny-qwen2-sharded", torch.float32, max_shard_size="100KB")
    llama = randomise(LlamaForCausalLM(LlamaConfig(**COMMON, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
                                                   rope_theta=500000.0, tie_word_embeddings=False)), 12)
    save(llama, "tiny-llama", torch.float32)
    save(llama, "tiny-llama-f16", torch.float16)


if __name__ == "__main__":
    main()
