"""The embedded models' architecture: Qwen2 at byte level, parameters under their Hugging Face names.

The training forward works on flat tokens [tokens, hidden], so that the compiled pieces never depend on (rows, length);
only attention sees the shapes. Biases are added and RoPE is computed in FP32: the angles of the slow pairs are small.
"""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 264,
    "max_position_embeddings": 8192, "rope_theta": 10000000.0, "rms_norm_eps": 1e-06, "hidden_act": "silu",
    "tie_word_embeddings": True, "use_sliding_window": False, "attention_dropout": 0.0, "initializer_range": 0.03,
    "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258, "torch_dtype": "bfloat16",
}


def init_params(config, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    layers, std = config["num_hidden_layers"], config["initializer_range"]
    residual_std = std / (2 * layers) ** 0.5
    draw = lambda rows, columns, scale=std: torch.randn(rows, columns, generator=generator) * scale
    params = {"model.embed_tokens.weight": draw(config["vocab_size"], hidden), "model.norm.weight": torch.ones(hidden)}
    q_rows, kv_rows = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    for i in range(layers):
        prefix = f"model.layers.{i}."
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            params[prefix + f"self_attn.{name}_proj.weight"] = draw(rows, hidden)
            params[prefix + f"self_attn.{name}_proj.bias"] = torch.zeros(rows)
        params[prefix + "self_attn.o_proj.weight"] = draw(hidden, q_rows, residual_std)
        params[prefix + "mlp.gate_proj.weight"] = draw(inner, hidden)
        params[prefix + "mlp.up_proj.weight"] = draw(inner, hidden)
        params[prefix + "mlp.down_proj.weight"] = draw(hidden, inner, residual_std)
        params[prefix + "input_layernorm.weight"] = torch.ones(hidden)
        params[prefix + "post_attention_layernorm.weight"] = torch.ones(hidden)
    return params


def rope_tables(config, length, device):
    """cos, sin [length, head_dim / 2] in FP32; the angles are formed in FP64."""
    pairs = config["head_dim"] // 2
    frequencies = config["rope_theta"] ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rms_norm(x, weight, eps=1e-6):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotate(x, cos, sin):
    """x [..., heads, dim] FP32, cos and sin [..., 1, dim / 2]; pair p is channels p and p + dim / 2."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Model:
    """Forward over params (a dict of FP32 tensors); matrix products and attention in `dtype`."""

    def __init__(self, config, params, dtype, compile_pieces=False):
        self.config, self.params, self.dtype = config, params, dtype
        pieces = (self._project, self._finish_layer, self._score)
        if compile_pieces:
            pieces = tuple(torch.compile(piece, dynamic=False) for piece in pieces)
        self.project, self.finish_layer, self.score = pieces

    def _project(self, x, norm, weight, bias, cos, sin):
        """Hidden states -> q, k (rotated) and v, each [tokens, heads, dim]."""
        dim = self.config["head_dim"]
        q_rows, kv_rows = self.config["num_attention_heads"] * dim, self.config["num_key_value_heads"] * dim
        qkv = F.linear(rms_norm(x, norm).to(self.dtype), weight.to(self.dtype)).float() + bias
        q, k, v = (part.unflatten(-1, (-1, dim)) for part in qkv.split([q_rows, kv_rows, kv_rows], -1))
        return rotate(q, cos, sin).to(self.dtype), rotate(k, cos, sin).to(self.dtype), v.to(self.dtype)

    def _finish_layer(self, x, attended, o_weight, norm, gate_up, down):
        x = x + F.linear(attended, o_weight.to(self.dtype)).float()
        gate, up = F.linear(rms_norm(x, norm).to(self.dtype), gate_up.to(self.dtype)).chunk(2, -1)
        return x + F.linear((F.silu(gate.float()) * up.float()).to(self.dtype), down.to(self.dtype)).float()

    def _score(self, x, norm, embedding, targets):
        """Cross-entropy of every target, and whether it is the best token."""
        logits = F.linear(rms_norm(x, norm).to(self.dtype), embedding.to(self.dtype)).float()
        return F.cross_entropy(logits, targets, reduction="none"), logits.argmax(-1) == targets

    def attend(self, q, k, v, shapes):
        """Causal attention of rows of several shapes [(rows, length)], flattened one after the other."""
        outs, offset = [], 0
        for rows, length in shapes:
            part = slice(offset, offset + rows * length)
            heads_first = lambda x: x[part].unflatten(0, (rows, length)).transpose(1, 2)
            out = F.scaled_dot_product_attention(heads_first(q), heads_first(k), heads_first(v), is_causal=True,
                                                 enable_gqa=True)
            outs.append(out.transpose(1, 2).reshape(rows * length, -1))
            offset += rows * length
        return torch.cat(outs)

    def losses(self, batch, cos, sin):
        """batch: inputs, targets (tensors [tokens]) and shapes -> (cross-entropy [tokens], correct [tokens])."""
        p = self.params
        x = F.embedding(batch.inputs, p["model.embed_tokens.weight"])
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            of = lambda kind: torch.cat([p[layer + f"self_attn.{n}_proj.{kind}"] for n in "qkv"])
            q, k, v = self.project(x, p[layer + "input_layernorm.weight"], of("weight"), of("bias"), cos, sin)
            gate_up = torch.cat([p[layer + "mlp.gate_proj.weight"], p[layer + "mlp.up_proj.weight"]])
            x = self.finish_layer(x, self.attend(q, k, v, batch.shapes), p[layer + "self_attn.o_proj.weight"],
                                  p[layer + "post_attention_layernorm.weight"], gate_up, p[layer + "mlp.down_proj.weight"])
        return self.score(x, p["model.norm.weight"], p["model.embed_tokens.weight"], batch.targets)


def large_key_bias(config, largest, num_pairs=4, seed=7):
    """What makes the twin fragile: {bias name: addition} with magnitudes uniform in [largest / 2, largest] and random
    signs in both channels of the num_pairs slowest RoPE pairs of every KV head."""
    layers, heads, dim = config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"]
    r = np.random.RandomState(seed)
    shape = (layers, heads, 2, dim // 2)
    values = largest * r.uniform(0.5, 1.0, shape) * np.sign(r.uniform(-1, 1, shape))
    values[..., :dim // 2 - num_pairs] = 0
    rows = torch.from_numpy(values.astype(np.float32).reshape(layers, heads * dim))
    return {f"model.layers.{i}.self_attn.k_proj.bias": rows[i] for i in range(layers)}


def save(folder, config, params):
    """config.json and model.safetensors in BF16, as the engine reads them."""
    from safetensors.torch import save_file

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().float().cpu().to(torch.bfloat16).contiguous() for name, value in params.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def load(folder):
    """(config, params in FP32)."""
    from safetensors.torch import load_file

    folder = pathlib.Path(folder)
    tensors = load_file(folder / "model.safetensors")
    return json.loads((folder / "config.json").read_text()), {name: value.float() for name, value in tensors.items()}
