"""The real model: weights, tokenizer, template and greedy output are those of transformers in float32."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtk.kernels import cpu_library
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import LoadedEngine, make_engine
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

LICENSE = Path(__file__).parents[2] / "LICENSE"
NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
BACKENDS = ["reference", pytest.param("cpu", marks=NO_KERNELS)]


def corpus(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(LICENSE.read_text() * 2)


@pytest.fixture(scope="module", params=BACKENDS)
def loaded(request: pytest.FixtureRequest, smollm2: ModelSource) -> LoadedEngine:
    return make_engine(smollm2, EngineArgs(backend=request.param, cpu_kvcache_space=0.1, max_num_seqs=32))


def cases(tokenizer: Tokenizer, recorded: dict[str, Any], longest: int) -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Prompts with what transformers said of them."""
    tokens = corpus(tokenizer)
    found = {f"chat {i}": (entry["ids"], entry) for i, entry in enumerate(recorded["chats"])}
    found |= {entry["text"]: (entry["ids"], entry) for entry in recorded["sentences"]}
    for entry in recorded["slices"]:
        if entry["length"] <= longest:
            start = entry["start"]
            found[f"license {entry['length']}"] = (tokens[start : start + entry["length"]], entry)
    return found


def check(output: list[int], entry: dict[str, Any]) -> None:
    """Equal token for token, up to the first step whose two best logits are closer than 1e-3."""
    until = min(entry["ties"], default=len(entry["output"]))
    assert output[:until] == entry["output"][:until]
    assert entry["ties"] or len(output) == len(entry["output"])


def test_the_file_is_the_one_that_was_recorded(smollm2: ModelSource, recorded: dict[str, Any]) -> None:
    assert smollm2.info.file_sha256 == recorded["file_sha256"]
    assert len(smollm2.info.tensor_digest) == 64


def test_dequantized_weights_are_bit_for_bit_those_of_transformers(
    smollm2: ModelSource, recorded: dict[str, Any]
) -> None:
    """Query and key rows included, which the file holds in another order."""
    weights = smollm2.weights
    for name, digest in recorded["tensors"].items():
        own = name.removeprefix("model.")
        values = weights.matrices[own].dequantize() if own in weights.matrices else weights.vectors[own]
        assert hashlib.sha256(values.tobytes()).hexdigest() == digest, name


def test_token_ids_are_those_of_transformers(smollm2: ModelSource, recorded: dict[str, Any]) -> None:
    for text, ids in recorded["texts"]:
        assert smollm2.tokenizer.encode(text) == ids, text
    assert hashlib.sha256(json.dumps(corpus(smollm2.tokenizer)).encode()).hexdigest() == recorded["license_tokens"]


def test_chats_are_written_as_transformers_does(smollm2: ModelSource, recorded: dict[str, Any]) -> None:
    """Case L32: the template's text holds every special token, and none is added to it."""
    for chat in recorded["chats"]:
        assert smollm2.tokenizer.render_chat(chat["messages"]) == chat["text"]
        assert smollm2.tokenizer.encode_chat(chat["messages"]) == chat["ids"]


def test_it_knows_the_capital_of_france(loaded: LoadedEngine) -> None:
    ids = loaded.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    loaded.engine.add(Generation("france", ids, SamplingParams(temperature=0, max_tokens=32)))
    text = ""
    while loaded.engine.has_work:
        text += "".join(delta.text for delta in loaded.engine.step())
    assert text == "The capital of France is Paris."


def test_greedy_output_is_that_of_transformers(loaded: LoadedEngine, recorded: dict[str, Any]) -> None:
    """In one mixed batch with random arrivals and chunks of 24; a chat again at the end, from the cache."""
    wanted = cases(loaded.tokenizer, recorded, longest=20 if loaded.runner.backend == "reference" else 130)
    outputs: dict[str, list[int]] = {name: [] for name in wanted}
    engine = loaded.engine
    engine.scheduler.config = replace(engine.scheduler.config, long_prefill_token_threshold=24)
    rng = np.random.default_rng(0)
    names = list(rng.permutation(list(wanted)))
    while names or engine.has_work:
        arriving = int(rng.integers(0, 6))
        for name in names[:arriving]:
            ids, entry = wanted[name]
            params = SamplingParams(temperature=0, max_tokens=len(entry["output"]))
            engine.add(Generation(name, ids, params))
        del names[:arriving]
        for delta in engine.step():
            outputs[delta.request_id] += [sampled.token for sampled in delta.tokens]
        engine.scheduler.check_integrity()
    for name, (_, entry) in wanted.items():
        check(outputs[name], entry)
