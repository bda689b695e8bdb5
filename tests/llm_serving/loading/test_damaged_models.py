"""Files that say what cannot be, or say a thing twice: one clear error each, before anything large is made of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vtk.errors import CheckpointError, RequestError, WeightsMismatchError
from vtk.llm_serving.loading.source import load_model_source
from vtk.llm_serving.prompts import encode_prompt

WriteGguf = Callable[..., Path]
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def config_with(folder: Path, **values: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 10**400}, "'rope_theta' should be a number within float32"),
        ({"rope_theta": float("inf")}, "within float32"),
        ({"rope_theta": 1e-300}, "within float32"),  # zero in float32: every angle would be infinite
        ({"rope_theta": 1e39}, "within float32"),
        ({"rms_norm_eps": 10**400}, "within float32"),
        ({"rms_norm_eps": float("nan")}, "within float32"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "within float32"),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, r"llama3 needs .* factor 0\.0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor below high_freq_factor"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 10**400}}, "at most"),
        ({"rope_scaling": LLAMA3, "rope_theta": -1.0}, r"rope_theta -1\.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "an object of values"),
        ({"num_hidden_layers": 10**7}, "should be at most 4096"),
        ({"head_dim": 10**12, "rope_scaling": LLAMA3}, "'head_dim' should be at most"),
        ({"eos_token_id": "258"}, "'eos_token_id' should be a token id from 0 to 258"),
        ({"eos_token_id": [258, None]}, "a list of them"),
        ({"eos_token_id": -1}, "from 0 to 258"),
        ({"eos_token_id": 259}, "from 0 to 258"),
        ({"eos_token_id": True}, "from 0 to 258"),
    ],
)
def test_numbers_that_no_model_has(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model_source(config_with(folder, **changes))


def test_what_ends_an_output_may_be_silent(folder: Path) -> None:
    assert load_model_source(config_with(folder, eos_token_id=None)).info.config.eos_ids == frozenset()
    (folder / "generation_config.json").write_text('{"eos_token_id": [400]}')
    with pytest.raises(CheckpointError, match=r"generation_config\.json: 'eos_token_id' should be a token id"):
        load_model_source(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__rope__freq_base": float("inf")}, "within float32"),
        ({"llama__block_count": 10**7}, "at most 4096"),
        (
            {"llama__attention__key_length": 1 << 31, "llama__rope__scaling__type": "linear"},
            "'llama.attention.key_length' should be at most",
        ),
        ({"tokenizer__ggml__eos_token_id": 259}, "from 0 to 258"),
        ({"tokenizer__ggml__eot_token_id": (1 << 32) - 1}, "from 0 to 258"),
    ],
)
def test_numbers_that_no_gguf_model_has(write_gguf: WriteGguf, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model_source(write_gguf(**changes))


@pytest.mark.parametrize("key", ["llama__rope__scaling__factor", "llama__rope__scale_linear"])
def test_a_factor_alone_scales_linearly(write_gguf: WriteGguf, key: str) -> None:
    """As llama.cpp reads it; to pass over it would change every output."""
    assert load_model_source(write_gguf(**{key: 4.0})).info.config.rope_factors == (4.0,) * 8
    none = write_gguf(**{key: 4.0}, llama__rope__scaling__type="none")
    assert load_model_source(none).info.config.rope_factors == ()


def test_a_tensor_under_two_names(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({**tensors, "norm.weight": torch.zeros(64)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"two tensors are both norm\.weight"):
        load_model_source(folder)


def test_a_gguf_file_does_not_use_the_names_of_the_model(
    write_gguf: WriteGguf, tensors: dict[str, torch.Tensor]
) -> None:
    tensors["norm.weight"] = torch.zeros(64)
    with pytest.raises(WeightsMismatchError, match=r"1 are unknown \(such as 'norm\.weight'\)"):
        load_model_source(write_gguf())


def test_a_name_that_occurs_twice_in_a_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    twice = json.dumps({"model.norm.weight": header["model.layers.0.input_layernorm.weight"]})[1:-1]
    text = f"{{{twice},{json.dumps(header)[1:]}".encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    with pytest.raises(CheckpointError, match=r"the name 'model\.norm\.weight' is there twice"):
        load_model_source(folder)


def test_without_an_embedding_table(write_gguf: WriteGguf, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.embed_tokens.weight"]
    with pytest.raises(CheckpointError, match=r"has no tensor token_embd\.weight"):
        load_model_source(write_gguf())


def test_a_download_that_left_only_its_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"but no weight file at all\.$"):
        load_model_source(folder)
    (folder / "model.safetensors").symlink_to("gone")
    with pytest.raises(CheckpointError, match=r"is a link to a file that is not there\. Download the model again"):
        load_model_source(folder)


def test_another_kind_of_weights_is_no_advice(folder: Path) -> None:
    """To name the file itself helps a vision checkpoint; a language model is read from a folder."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors.*, but pytorch_model\.bin\.$"):
        load_model_source(folder)


def test_a_path_that_no_system_takes() -> None:
    with pytest.raises(CheckpointError, match=r"cannot be read: File name too long\."):
        load_model_source(Path("a" * 5000))


def tokenizer_with(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    return folder


def test_a_token_id_that_would_take_all_memory(folder: Path) -> None:
    tokenizer_with(folder, lambda stored: stored["model"]["vocab"].update({"zz": 4_000_000_000}))
    with pytest.raises(CheckpointError, match="has a token 4000000000; vtk serves ids up to"):
        load_model_source(folder)


def test_a_token_that_the_model_does_not_have_costs_its_own_request_alone(folder: Path) -> None:
    """It would fail a step, and with it every request that shares the step."""
    tokenizer_with(folder, lambda stored: stored["model"]["vocab"].update({"H": 500}))
    source = load_model_source(folder)
    assert source.tokenizer.encode("aH") == [source.tokenizer.encode("a")[0], 500]
    with pytest.raises(RequestError, match="Token ids of this model are 0 to 258; got 500"):
        encode_prompt("aH", source.tokenizer, source.info.config.vocab_size)


def test_a_text_beyond_the_context_is_refused_before_it_is_tokenized(folder: Path) -> None:
    """The longest token is `</s>`: more than 128 of them are more than the context."""
    tokenizer = load_model_source(folder).tokenizer
    assert len(tokenizer.encode("a" * 4 * 128)) == 512
    with pytest.raises(RequestError, match=r"has 513 characters; the longest tokens .* with 512\. Shorten") as caught:
        tokenizer.encode("a" * 513)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", rb'{"eos_token": "\ud800"}', "half a surrogate pair"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "the chat template should be text, not '5'"),
        (
            "tokenizer_config.json",
            b'{"chat_template": [{"name": "default", "template": 7}]}',
            "should be text, not '7'",
        ),
        ("chat_template.jinja", b"\xff{{ messages }}", r"chat_template\.jinja is not UTF-8 text"),
    ],
)
def test_files_beside_the_tokenizer(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_model_source(folder)


def test_templates_without_a_usable_name_are_none(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"chat_template": [{"name": ["x"], "template": "y"}, 3]}')
    assert load_model_source(folder).tokenizer.template is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__chat_template": 3}, "'tokenizer.chat_template' should be text"),
        ({"tokenizer__ggml__tokens": ["a" * 5000, *map(str, range(258))]}, "a token is 5000 characters long"),
    ],
)
def test_tokenizers_of_gguf_files(write_gguf: WriteGguf, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_model_source(write_gguf(**changes))
