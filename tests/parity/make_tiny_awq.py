"""tests/golden/parity/tiny-awq: the tiny qwen2 model quantised to AWQ INT4 as AutoAWQ publishes it (version "gemm").

    python tests/parity/make_tiny_awq.py

Written from AutoAWQ's documented layout: zero-point quantisation of groups of 32 inputs (pseudo_quantize_tensor), scales
rounded to FP16, and eight outputs in an I32 word in the order 0, 2, 4, 6, 1, 3, 5, 7. Activation-aware scaling changes
the weights before this step, not the format, so the random model does without. `load` reads such a folder back with the
exact values (q - z) * s in FP32, for make_goldens.py.
"""

import json

import torch
import transformers
from safetensors.torch import load_file, save_file

from make_tiny_models import COMMON, GOLDEN, randomise

NAME = "tiny-awq"
GROUP = 32
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def pack(values):
    """[lines, out] of 0..15 to I32 [lines, out / 8]."""
    lanes = values.to(torch.int64).view(values.shape[0], -1, 8)
    words = sum(lanes[:, :, output] << (4 * place) for place, output in enumerate(ORDER))
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


def unpack(words):
    lanes = torch.stack([(words.to(torch.int64) >> (4 * ORDER.index(output))) & 15 for output in range(8)], -1)
    return lanes.view(words.shape[0], -1)


def quantise(weight):
    """qweight, qzeros and scales of a [out, in] matrix."""
    groups = weight.float().view(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low).clamp(min=1e-5) / 15).half().float()
    zeros = (-torch.round(low / scales)).clamp(0, 15)
    values = (torch.round(groups / scales[..., None]) + zeros[..., None]).clamp(0, 15).view(weight.shape)
    return pack(values.t()), pack(zeros.t()), scales.t().half().contiguous()


def dequantise(qweight, qzeros, scales):
    """[out, in] in FP32, each value exact."""
    group = qweight.shape[0] // scales.shape[0]
    wide = lambda lines: lines.repeat_interleave(group, 0)
    return ((unpack(qweight) - wide(unpack(qzeros))) * wide(scales.float())).t().contiguous()


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    del config.quantization_config
    tensors = {}
    stored = load_file(folder / "model.safetensors")
    for name, tensor in stored.items():
        module = name.rpartition(".")[0]
        if name.endswith(".qweight"):
            tensors[f"{module}.weight"] = dequantise(tensor, stored[f"{module}.qzeros"], stored[f"{module}.scales"])
        elif not name.endswith((".qzeros", ".scales")):
            tensors[name] = tensor.float()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def main():
    config = transformers.Qwen2Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, rope_theta=10000.0,
                                      tie_word_embeddings=True)
    model = randomise(transformers.Qwen2ForCausalLM(config), 31).half()
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("_proj.weight"):
            module = name.removesuffix(".weight")
            for part, value in zip(("qweight", "qzeros", "scales"), quantise(tensor)):
                tensors[f"{module}.{part}"] = value
        elif name != "lm_head.weight":
            tensors[name] = tensor.contiguous()
    folder = GOLDEN / NAME
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    published = json.loads(config.to_json_string())
    published["architectures"] = ["Qwen2ForCausalLM"]
    published["torch_dtype"] = "float16"
    published.pop("dtype", None)
    published["quantization_config"] = {"bits": 4, "group_size": GROUP, "modules_to_not_convert": None,
                                        "quant_method": "awq", "version": "gemm", "zero_point": True}
    (folder / "config.json").write_text(json.dumps(published, indent=2, sort_keys=True) + "\n")
    print(NAME, {path.name: path.stat().st_size for path in sorted(folder.iterdir())})


if __name__ == "__main__":
    main()
