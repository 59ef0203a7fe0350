"""A torch forward of qwen2 and llama whose attention reads keys and values from their stored bytes (the reference
path: prefill included), or, with stored_reads=False, from the just-computed 16-bit ones (the worker path of one fresh
chunk). Weights and arithmetic are FP32 (or FP64, to see how much of a difference rounding noise explains)."""

import dataclasses
import json
import pathlib

import torch

import quantiser


@dataclasses.dataclass
class Geometry:
    model_type: str
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    native: str


def geometry_of(config, native=None):
    """From a transformers configuration or a dict of config.json; native: "bf16", "f16" or "f32"."""
    get = config.get if isinstance(config, dict) else lambda name, default=None: getattr(config, name, default)
    theta = get("rope_theta") or (get("rope_parameters") or {}).get("rope_theta")
    head_dim = get("head_dim") or get("hidden_size") // get("num_attention_heads")
    names = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    native = native or names[get("torch_dtype") or get("dtype")]
    return Geometry(get("model_type"), get("num_hidden_layers"), get("num_attention_heads"),
                    get("num_key_value_heads"), head_dim, float(theta), get("rms_norm_eps"), native)


class ReferenceModel:
    def __init__(self, weights, geometry, dtype=torch.float32):
        self.geometry = geometry
        self.dtype = dtype
        self.weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
        self.frequencies = quantiser.rope_frequencies(geometry.rope_theta, geometry.head_dim)

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.geometry.rms_norm_eps) * self.weights[name]

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def layer_input(self, x, prefix, cos, sin):
        """Normed hidden states [tokens, hidden] -> (q after rotation, quantiser.LayerInput)."""
        g = self.geometry
        shape = (x.shape[0], -1, g.head_dim)
        q = quantiser.rotate(self.linear(x, prefix + "q_proj").view(shape), cos, sin)
        k = (x @ self.weights[prefix + "k_proj.weight"].T).view(shape)
        bias = self.weights.get(prefix + "k_proj.bias")
        bias = None if bias is None else bias.view(g.num_kv_heads, g.head_dim)
        v = self.linear(x, prefix + "v_proj").view(shape)
        return q, quantiser.LayerInput(k, v, bias, cos, sin, self.frequencies)

    def attend(self, q, kv, cos, sin, stored_reads):
        """Causal attention over one layer's keys and values -> [tokens, q_heads * dim]."""
        g, tokens = self.geometry, q.shape[0]
        k = kv.key.read() if stored_reads else kv.fresh_k
        v = kv.value.read() if stored_reads else kv.fresh_v
        group = g.num_q_heads // g.num_kv_heads
        heads_first = lambda x: x.to(self.dtype).permute(1, 0, 2).repeat_interleave(group, 0)
        q = q.permute(1, 0, 2)
        scores = q @ heads_first(k).transpose(1, 2)
        if stored_reads and kv.removed is not None:
            rotated = quantiser.rotate(kv.removed.to(self.dtype).expand(tokens, -1, -1), cos, sin)
            scores = scores + q @ heads_first(rotated).transpose(1, 2)
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = (scores * g.head_dim ** -0.5).masked_fill(mask, float("-inf")).softmax(-1)
        return (weights @ heads_first(v)).permute(1, 0, 2).reshape(tokens, -1)

    @torch.no_grad()
    def forward(self, token_ids, arm, fixed_scales=None, stored_reads=True, on_layer=None):
        """Logits [tokens, vocabulary] of one sequence. fixed_scales: [(key, value)] a layer, for fixed arms.
        on_layer(layer_idx, LayerKv, LayerInput) sees what was stored and may return another LayerKv to read instead."""
        g = self.geometry
        cos, sin = quantiser.rope_tables(self.frequencies, range(len(token_ids)))
        x = self.weights["model.embed_tokens.weight"][torch.tensor(token_ids)]
        for i in range(g.num_layers):
            prefix = f"model.layers.{i}."
            q, layer = self.layer_input(self.norm(x, prefix + "input_layernorm.weight"), prefix + "self_attn.", cos, sin)
            kv = quantiser.write_layer(arm, g.native, layer, *(fixed_scales[i] if fixed_scales else (1.0, 1.0)))
            if on_layer is not None:
                kv = on_layer(i, kv, layer) or kv
            x = x + self.linear(self.attend(q, kv, cos, sin, stored_reads), prefix + "self_attn.o_proj")
            h = self.norm(x, prefix + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(self.linear(h, prefix + "mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(h, prefix + "mlp.up_proj"), prefix + "mlp.down_proj")
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.norm(x, "model.norm.weight") @ head.T

    def losses(self, token_ids, arm, **options):
        """NLL of tokens 1.. of one document given those before: float64 [tokens - 1]."""
        logits = self.forward(token_ids, arm, **options)[:-1].to(torch.float64)
        targets = torch.tensor(token_ids[1:])[:, None]
        return -logits.log_softmax(-1).gather(-1, targets)[:, 0]


def load_safetensors_model(folder, dtype=torch.float32):
    from safetensors.torch import load_file

    folder = pathlib.Path(folder)
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(path))
    config = json.loads((folder / "config.json").read_text())
    return ReferenceModel(weights, geometry_of(config), dtype)


def load_transformers_gguf(path):
    """The transformers model of a GGUF file, dequantised to FP32 by transformers, eager attention."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    path = pathlib.Path(path)
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                attn_implementation="eager").eval()


def load_gguf_model(path, native="f16", dtype=torch.float32):
    """A GGUF file holds no torch_dtype: its native type is f16 unless every matrix is stored as bf16 or f32."""
    model = load_transformers_gguf(path)
    weights = model.state_dict()
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    return ReferenceModel(weights, geometry_of(model.config, native), dtype)


def load_model(path, dtype=torch.float32):
    """A safetensors folder or a .gguf file."""
    return load_gguf_model(path, dtype=dtype) if str(path).endswith(".gguf") else load_safetensors_model(path, dtype)
