"""Both file formats of one model give the same configuration, weights and tokens; what is not served is said."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vtk.errors import CheckpointError, WeightsMismatchError
from vtk.exporters.checkpoint_digest import tensor_digest
from vtk.kernels import cpu_library
from vtk.llm_serving.loading.source import load_model_source
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.rope import llama3_factors, rope_tables

WriteGguf = Callable[..., Path]


def change(path: Path, **values: object) -> None:
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**stored, **values}))


def test_both_formats_are_one_model(folder: Path, write_gguf: WriteGguf, tensors: dict[str, torch.Tensor]) -> None:
    one, other = load_model_source(folder), load_model_source(write_gguf())
    assert (one.info.format, other.info.format) == ("safetensors", "gguf")
    assert one.info.config.eos_ids == {258}
    assert one.info.config.rms_norm_eps == pytest.approx(other.info.config.rms_norm_eps)
    fields = {**vars(one.info.config), "rms_norm_eps": 0}
    assert fields == {**vars(other.info.config), "rms_norm_eps": 0}
    for name, stored in tensors.items():
        own = name.removeprefix("model.")
        for source in (one, other):
            found = source.weights.vectors[own] if stored.dim() == 1 else source.weights.matrices[own].dequantize()
            np.testing.assert_array_equal(found, stored.numpy(), err_msg=f"{name} of {source.info.format}")
    assert one.info.tensor_digest == tensor_digest(tensors)
    assert one.tokenizer.encode("Hi <s>ñ") == other.tokenizer.encode("Hi <s>ñ")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
def test_stored_precision_is_kept(write_gguf: WriteGguf, tensors: dict[str, torch.Tensor], kind: str) -> None:
    """Dequantized values are those of ggml's own package, query and key rows back in their order."""
    weights = load_model_source(write_gguf(quantize=kind)).weights
    quantization = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            weight = weights.matrices[name.removeprefix("model.")]
            expected = gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), quantization), quantization)
            assert weight.format == kind.lower()
            np.testing.assert_array_equal(weight.dequantize(), expected, err_msg=name)


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_precision_folders_stay_as_stored(
    folder: Path, tensors: dict[str, torch.Tensor], name: str, dtype: torch.dtype
) -> None:
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
    weights = load_model_source(folder).weights
    assert {weight.format for weight in weights.matrices.values()} == {name}
    for own, matrix in weights.matrices.items():
        stored = tensors[own if own == "lm_head.weight" else f"model.{own}"].to(dtype)
        np.testing.assert_array_equal(matrix.data.view(np.int16), stored.view(torch.int16).numpy())
        np.testing.assert_array_equal(matrix.dequantize(), stored.float().numpy())
    expected = tensors["model.norm.weight"].to(dtype).float()
    np.testing.assert_array_equal(weights.vectors["norm.weight"], expected.numpy())


def test_shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    whole = load_model_source(folder)
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in halves.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert load_model_source(folder).info.tensor_digest == whole.info.tensor_digest


@pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
def test_a_folder_is_served_without_torch(folder: Path) -> None:
    code = """
import sys; sys.modules["torch"] = None
from pathlib import Path
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.load import load_engine
print(load_engine(Path(sys.argv[1]), EngineArgs(num_gpu_blocks_override=8)).runner.backend)
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("cpu-"), done.stderr


def test_tied_embeddings(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Where the configuration ties them, a stored output matrix means nothing."""
    change(folder / "config.json", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_model_source(folder).weights.matrices
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert load_model_source(folder).info.config.tie_embeddings


def test_generation_config_says_what_ends_an_output(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[3, 258])
    assert load_model_source(folder).info.config.eos_ids == {3, 258}
    assert load_model_source(folder).tokenizer.eos_ids == {3, 258}


def test_llama3_rope_in_both_formats(folder: Path, write_gguf: WriteGguf, tensors: dict[str, torch.Tensor]) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 32
    change(folder / "config.json", rope_scaling=scaling)
    factors = load_model_source(folder).info.config.rope_factors
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=128,
        rope_parameters={**scaling, "rope_theta": 5000.0},
    )  # fmt: skip
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    base = 5000.0 ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(base / torch.tensor(factors), expected, rtol=1e-6, atol=0)
    assert factors[0] == 1
    assert factors[-1] == 8


def test_rope_tables_are_angles() -> None:
    config = ModelConfig("llama", 8, 8, 1, 2, 1, 4, 8, 16, 1e-5, 100.0, rope_factors=(1.0, 2.0))
    cos, sin = rope_tables(config, 3)
    angles = np.array([[0, 0], [1, 0.05], [2, 0.1]])
    np.testing.assert_allclose(cos, np.cos(angles), rtol=1e-6)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=1e-6)
    factors = llama3_factors(1e4, 8, factor=4, low_freq_factor=1, high_freq_factor=4, original=64)
    assert list(factors) == sorted(factors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"'GPT2LMHeadModel'\. vtk serves: llama .*qwen2 .*qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "scales RoPE by 'yarn'"),
        ({"rope_scaling": [1]}, "should be an object"),
        ({"hidden_size": None}, "does not say 'hidden_size'"),
        ({"hidden_size": "64"}, "should be an integer"),
        ({"rms_norm_eps": 0}, "not positive"),
        ({"num_key_value_heads": 3}, "4 heads over 3 key-value heads"),
        ({"num_attention_heads": 0}, "num_heads 0"),
        ({"num_hidden_layers": 10**9}, "at most 4096"),
    ],
)
def test_configurations_that_are_not_served(folder: Path, changes: dict[str, Any], message: str) -> None:
    change(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_model_source(folder)


def test_tensors_that_do_not_fill_the_model(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    change(folder / "config.json", num_hidden_layers=2)
    with pytest.raises(WeightsMismatchError, match=r"9 are missing \(such as layers\.1\."):
        load_model_source(folder)
    change(folder / "config.json", num_hidden_layers=1, intermediate_size=32)
    with pytest.raises(WeightsMismatchError, match=r"is \(96, 64\), not \(32, 64\)|is \(64, 96\), not \(64, 32\)"):
        load_model_source(folder)
    change(folder / "config.json", intermediate_size=96)
    save_file({**tensors, "model.layers.0.extra.weight": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(WeightsMismatchError, match=r"1 are unknown \(such as layers\.0\.extra"):
        load_model_source(folder)
    save_file({**tensors, "model.norm.weight": torch.ones(64, dtype=torch.int32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is torch\.int32|norm\.weight is torch\.int32"):
        load_model_source(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "mamba"}, "'mamba'"),
        ({"skip": ("llama.block_count",)}, "does not say 'llama.block_count'"),
        ({"llama__rope__scaling__type": "yarn"}, "scales RoPE by 'yarn'"),
        ({"llama__rope__dimension_count": 8}, "rope.dimension_count = 8"),
        ({"llama__attention__sliding_window": 512}, "sliding_window = 512"),
        ({"tokenizer__ggml__model": "t5"}, "a tokenizer of the kind 't5'"),
        ({"tokenizer__ggml__pre": "unheard-of"}, "by the rule 'unheard-of'"),
        ({"tokenizer__ggml__merges": ["a b"]}, "the merge 'a b'"),
        ({"tokenizer__ggml__token_type": [1, 1]}, "2 token types for 259 tokens"),
        ({"tokenizer__ggml__tokens": ["a", "a"], "tokenizer__ggml__token_type": [1, 1]}, "occurs twice"),
        ({"tokenizer__chat_template": "{% for %}"}, "no valid Jinja, line 1"),
    ],
)
def test_gguf_files_that_are_not_served(write_gguf: WriteGguf, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model_source(write_gguf(**changes))


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist\. Expected a GGUF file, or a folder"):
        load_model_source(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match="is no language model"):
        load_model_source(tmp_path / "notes.txt")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"has no config\.json\. Name the GGUF file itself: a\.gguf"):
        load_model_source(tmp_path)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json\. Expected a GGUF file, or a folder"):
        load_model_source(bundle)
    (bundle / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no config\.json\. It looks like a bundle of a vision model"):
        load_model_source(bundle)


def test_a_folder_without_its_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_model_source(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        load_model_source(folder)
