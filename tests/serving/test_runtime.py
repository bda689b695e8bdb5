"""A runtime over real models: start, refusals, memory, traffic, drain, and a new start after a kill."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vtk.errors import BackendError, InputError, NotFoundError, UnavailableError, UsageError
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.predictor import Predictor
from vtk.preprocess.apply import Preprocessed
from vtk.preprocess.resize import RGBImage
from vtk.runtime import Runtime
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import OpenedModel
from vtk.serving.settings import RuntimeSettings, default_models, default_traffic_profile

MakeBundle = Callable[..., Path]
MIB = 1 << 20
BLANK = np.zeros((3, 8, 8), np.float32)
HIDDEN, VOCAB = 32, 258
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": VOCAB,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "bos_token_id": 256,
    "eos_token_id": 257, "tie_word_embeddings": True,
}  # fmt: skip


def save_llama(folder: Path, seed: int = 0) -> Path:
    """A random decoder of one layer over bytes."""
    folder.mkdir(parents=True)
    layer = "model.layers.0"
    shapes = {
        "model.embed_tokens": (VOCAB, HIDDEN), "model.norm": (HIDDEN,),
        f"{layer}.input_layernorm": (HIDDEN,), f"{layer}.post_attention_layernorm": (HIDDEN,),
        f"{layer}.self_attn.q_proj": (HIDDEN, HIDDEN), f"{layer}.self_attn.k_proj": (HIDDEN // 2, HIDDEN),
        f"{layer}.self_attn.v_proj": (HIDDEN // 2, HIDDEN), f"{layer}.self_attn.o_proj": (HIDDEN, HIDDEN),
        f"{layer}.mlp.gate_proj": (HIDDEN, HIDDEN), f"{layer}.mlp.up_proj": (HIDDEN, HIDDEN),
        f"{layer}.mlp.down_proj": (HIDDEN, HIDDEN),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def settings_for(folder: Path, **choices: Any) -> RuntimeSettings:
    engine = {"cpu_kvcache_space": 0.01, "num_threads": 1, **choices.pop("engine", {})}
    return RuntimeSettings(**{"models": folder, "threads": 1, "memory_bytes": 1024 * MIB, "engine": engine, **choices})


@contextmanager
def serving(folder: Path, **choices: Any) -> Iterator[Runtime]:
    with closing(Runtime(settings_for(folder, **choices))) as runtime:
        runtime.start()
        yield runtime


def start(settings: RuntimeSettings) -> None:
    with closing(Runtime(settings)) as runtime:
        runtime.start()


@pytest.fixture
def folder(tmp_path: Path, make_bundle: MakeBundle) -> Path:
    """A bundle `mean` and a language model `llama`."""
    make_bundle(tmp_path / "models/mean", bias=3.0)
    save_llama(tmp_path / "models/llama")
    return tmp_path / "models"


async def generate(runtime: Runtime, prompt: list[int], *, salt: str | None = None) -> tuple[list[int], int]:
    """Token ids, and how many tokens of the prompt were cached."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    with runtime.language("llama") as model:
        name = f"test-{np.random.default_rng().integers(1 << 60)}"
        generation = await model.prepare(prompt, params, request_id=name, cache_salt=salt)
        deltas = [delta async for delta in model.stream(generation)]
    return [token.token for delta in deltas for token in delta.tokens], deltas[0].num_cached


def test_both_kinds_serve_from_one_budget(folder: Path) -> None:
    with serving(folder) as runtime:
        assert runtime.is_ready
        llama, mean = runtime.statuses()
        assert (llama.name, llama.kind, llama.task, llama.state) == ("llama", "llm", "generate", "ready")
        assert (mean.name, mean.kind, mean.task, mean.state) == ("mean", "vision", "classify", "ready")
        assert (mean.backend, mean.device, mean.precision) == ("ort", "cpu", "fp32")
        assert (mean.source_sha256, len(llama.source_sha256), len(llama.tensor_digest)) == ("5" * 64, 64, 64)
        assert llama.bytes >= int(0.01 * 1024 * MIB)
        assert runtime.budget.free == runtime.budget.total - llama.bytes - mean.bytes
        with runtime.vision("mean") as model:
            assert model.submit(BLANK).result(timeout=30)["logits"].tolist() == [3.0] * 3
        tokens, _ = asyncio.run(generate(runtime, [1, 2, 3]))
        assert len(tokens) == 4
    assert not runtime.is_ready


@pytest.mark.parametrize(("kind", "name"), [("vision", "mean"), ("llm", "llama")])
def test_one_kind_alone(kind: Any, name: str, folder: Path) -> None:
    with serving(folder, kinds=frozenset({kind})) as runtime:
        assert [status.name for status in runtime.statuses()] == [name]


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no vision models or language models in .*vtk pull-demo.*vtk export"):
        start(settings_for(tmp_path / "none"))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/model.b1.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"no vision models in .*toy: it has no manifest\.json: half copied"):
        start(settings_for(tmp_path, kinds=frozenset({"vision"})))


def test_the_home_of_vtk_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VTK_HOME", str(tmp_path))
    assert RuntimeSettings().model_folder == default_models() == tmp_path / "models"
    assert default_traffic_profile() == tmp_path / "traffic.json"
    monkeypatch.delenv("VTK_HOME")
    assert default_models() == Path.home() / ".vtk/models"


def test_models_by_name_and_by_path(folder: Path, tmp_path: Path, make_bundle: MakeBundle) -> None:
    other = make_bundle(tmp_path / "elsewhere/other", bias=7.0)
    with serving(folder, selected=("mean", str(other))) as runtime:
        assert [status.name for status in runtime.statuses()] == ["mean", "other"]
        assert runtime.load("other").reason == ""
        with pytest.raises(NotFoundError):
            runtime.load("llama")
    for missing in ("nobody", "../models/nobody", "a/../../b"):
        with pytest.raises(InputError, match="There is no model"):
            start(settings_for(folder, selected=(missing,)))


def test_what_was_asked_for_and_cannot_be_served_is_told(folder: Path, make_bundle: MakeBundle) -> None:
    (folder / "notes").mkdir()
    with pytest.raises(InputError, match=r"'notes' cannot be served: .*it is no model"):
        start(settings_for(folder, selected=("mean", "notes")))
    with pytest.raises(InputError, match=r"'llama' is a language model"):
        start(settings_for(folder, selected=("mean", "llama"), kinds=frozenset({"vision"})))
    other = make_bundle(folder.parent / "elsewhere/mean")
    with pytest.raises(InputError, match="another model is called 'mean' too"):
        start(settings_for(folder, selected=("mean", str(other))))
    (make_bundle(folder / "both/2") / "manifest.json").unlink()
    make_bundle(folder / "both/1")
    with serving(folder, selected=("both", "both")) as runtime:
        assert [status.version for status in runtime.statuses()] == ["1"]


def test_the_folder_that_one_is_in_can_be_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "mean")
    with serving(folder, selected=(".",)) as runtime:
        assert [status.name for status in runtime.statuses()] == ["mean"]


def test_a_selected_model_that_goes_away_leaves_the_others(folder: Path, make_bundle: MakeBundle) -> None:
    make_bundle(folder / "other")
    with serving(folder, selected=("mean", "other")) as runtime:
        shutil.rmtree(folder / "other")
        runtime.poll()
        runtime.poll()
        assert [status.name for status in runtime.statuses()] == ["mean"]
        assert runtime.load("mean").reason == ""


def test_closing_ends_a_start_that_is_not_over(folder: Path, make_bundle: MakeBundle) -> None:
    make_bundle(folder / "next")
    opened: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def open_slowly(found: FoundModel) -> OpenedModel:
        opened.append(found.name)
        begun.set()
        assert go_on.wait(30)
        raise BackendError("too late")

    runtime = Runtime(settings_for(folder), open_model=open_slowly)
    thread = threading.Thread(target=runtime.start)
    thread.start()
    assert begun.wait(30)
    runtime.close()
    go_on.set()
    thread.join()
    assert opened == ["mean"]
    assert not runtime.is_ready


@pytest.mark.parametrize("name", ["../mean", "/etc", "mean/1", "..", ".", "", "me an", "a\0b", "x" * 300, "~"])
def test_a_name_is_never_a_path(name: str, folder: Path, make_bundle: MakeBundle) -> None:
    make_bundle(folder.parent / "secret")
    with serving(folder, kinds=frozenset({"vision"})) as runtime:
        with pytest.raises(NotFoundError):
            runtime.load(name)
        with pytest.raises(NotFoundError):
            runtime.unload(name)
        with pytest.raises(NotFoundError), runtime.vision(name):
            pass


def test_a_damaged_model_of_the_folder_does_not_keep_the_others_from_serving(folder: Path) -> None:
    (folder / "mean/model.b1.onnx").write_bytes(b"damaged")
    with serving(folder) as runtime:
        assert {status.name: status.state for status in runtime.statuses()} == {"llama": "ready", "mean": "failed"}
        with pytest.raises(UnavailableError, match=r"'mean' is failed.*was changed"), runtime.vision("mean"):
            pass
    with pytest.raises(InputError, match=r"'mean' cannot be served: .*was changed"):
        start(settings_for(folder, selected=("mean", "llama")))
    with pytest.raises(InputError, match="'mean' cannot be served"):
        start(settings_for(folder, kinds=frozenset({"vision"})))


def test_settings_that_a_model_cannot_follow_are_never_dropped(folder: Path) -> None:
    with pytest.raises(InputError, match=r"'llama' cannot be served: max_model_len is 4096.*2048"):
        start(settings_for(folder, engine={"max_model_len": 4096}))


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(InputError, match=r"llama 1 needs [\d,.]+ MiB and [\d.]+ of 64\.0 MiB are free"):
        start(settings_for(folder, memory_bytes=64 * MIB, engine={"cpu_kvcache_space": 0.1}))


def test_the_kv_cache_takes_its_default_or_what_is_left(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = RuntimeSettings(models=folder, threads=1, memory_bytes=400 * MIB, engine={"num_threads": 1})
    runtime = Runtime(settings)
    with caplog.at_level(logging.INFO, "vtk.serving"):
        runtime.start()
    try:
        assert 0 <= runtime.budget.free <= 400 * MIB
        assert "the KV cache gets" in caplog.text
        with runtime.language("llama") as model:
            assert 250 * MIB < model.loaded.runner.num_blocks * 16 * 2 * 16 * 4 < 400 * MIB
    finally:
        runtime.close()


def test_what_does_not_fit_beside_the_old_one_leaves_it_serving(folder: Path, tmp_path: Path) -> None:
    with serving(folder, memory_bytes=180 * MIB, engine={"cpu_kvcache_space": 0.1}) as runtime:
        status = runtime.load("llama")
        assert status.state == "ready"
        assert "needs" in status.reason
        assert "are free" in status.reason
        asyncio.run(generate(runtime, [1, 2, 3]))
        runtime.unload("llama")
        assert runtime._table.wait_closed(30)
        assert runtime.load("llama").reason == "", "it fits when the old one is gone"


def test_a_language_model_is_swapped_while_it_writes(folder: Path, tmp_path: Path) -> None:
    """A stream that has begun ends with the weights that it began with."""
    with serving(folder) as runtime:
        expected, _ = asyncio.run(generate(runtime, [5, 6, 7]))

        async def write() -> list[int]:
            params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
            with runtime.language("llama") as model:
                generation = await model.prepare([5, 6, 7], params, request_id="long")
                tokens: list[int] = []
                async for delta in model.stream(generation):
                    tokens += [token.token for token in delta.tokens]
                    if len(tokens) == 4:
                        assert (await asyncio.to_thread(runtime.load, "llama")).reason == ""
                return tokens

        shutil.rmtree(folder / "llama")
        save_llama(folder / "llama", seed=1)
        tokens = asyncio.run(write())
        assert len(tokens) == 64
        assert tokens[:4] == expected
        assert asyncio.run(generate(runtime, [5, 6, 7]))[0] != expected, "new requests get the new weights"


def test_frequent_prefixes_are_in_the_cache_before_the_first_request(folder: Path, tmp_path: Path) -> None:
    profile = tmp_path / "traffic.json"
    shared = np.random.default_rng(0).integers(0, 256, 96).tolist()
    private = np.random.default_rng(1).integers(0, 256, 96).tolist()
    with serving(folder, traffic_profile=profile) as runtime:
        for last in range(3):
            _, cached = asyncio.run(generate(runtime, [*shared, last]))
            asyncio.run(generate(runtime, [*private, last], salt="mine"))
        assert cached == 96
    with serving(folder, traffic_profile=profile) as runtime:
        assert asyncio.run(generate(runtime, [*shared, 9]))[1] >= 80
        assert asyncio.run(generate(runtime, [*private, 9]))[1] == 0
    with serving(folder) as runtime:
        assert asyncio.run(generate(runtime, [*shared, 9]))[1] == 0, "switched off"
    shutil.rmtree(folder / "llama")
    save_llama(folder / "llama", seed=1)
    with serving(folder, traffic_profile=profile) as runtime:
        assert asyncio.run(generate(runtime, [*shared, 9]))[1] == 0, "the tokens of other weights mean nothing"


def test_sizes_of_pictures_are_kept_and_prepared_at_the_next_start(
    folder: Path, tmp_path: Path, save_picture: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "traffic.json"
    picture = save_picture(tmp_path / "a.png", size_wh=(33, 21)).read_bytes()
    with serving(folder, traffic_profile=profile) as runtime, runtime.vision("mean") as model:
        answer = asyncio.run(model.answer(picture))
        assert (answer.width, answer.height) == (33, 21)
    prepared: list[tuple[int, ...]] = []
    prepare = Predictor.prepare

    def spy(self: Predictor, pixels: RGBImage) -> Preprocessed:
        prepared.append(pixels.shape)
        return prepare(self, pixels)

    monkeypatch.setattr(Predictor, "prepare", spy)
    data = json.loads(profile.read_text())
    data["sizes"] += [{**data["sizes"][0], "numbers": numbers} for numbers in ([0, 5], [1 << 40, 1 << 20])]
    profile.write_text(json.dumps(data))
    with serving(folder, traffic_profile=profile, verify_on_load=False):
        assert set(prepared) == {(8, 8, 3), (21, 33, 3)}, "and nothing that the file was made to ask for"


def test_drain_lets_what_runs_end(folder: Path) -> None:
    with serving(folder) as runtime:
        inside, leave = threading.Event(), threading.Event()
        rows: list[Any] = []

        def client() -> None:
            with runtime.vision("mean") as model:
                inside.set()
                leave.wait(30)
                rows.append(model.submit(BLANK).result(timeout=30))

        thread = threading.Thread(target=client)
        thread.start()
        assert inside.wait(30)
        assert not runtime.drain(0)
        assert runtime.is_draining
        assert not runtime.is_ready
        with pytest.raises(UnavailableError), runtime.vision("mean"):
            pass
        leave.set()
        assert runtime.drain(30)
        thread.join()
        assert rows[0]["logits"].tolist() == [3.0] * 3


_CHILD = """
import sys, threading
from pathlib import Path
from vtk.runtime import Runtime
from vtk.serving.settings import RuntimeSettings
runtime = Runtime(RuntimeSettings(models=Path(sys.argv[1]), kinds=frozenset({"vision"}), threads=1,
                                  traffic_profile=Path(sys.argv[2])))
runtime.start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_after_a_kill_it_serves_again(folder: Path, tmp_path: Path) -> None:
    profile = tmp_path / "traffic.json"
    profile.write_text('{"schema_version": 1, "prefi')
    words = [sys.executable, "-c", _CHILD, str(folder), str(profile)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        finally:
            child.send_signal(signal.SIGKILL)
    with serving(folder, traffic_profile=profile) as runtime, runtime.vision("mean") as model:
        assert model.submit(BLANK).result(timeout=30)["logits"].tolist() == [3.0] * 3


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kinds": frozenset()}, "kinds must be some of vision, llm"),
        ({"kinds": frozenset({"audio"})}, "got audio"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is a share"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is a share"),
        ({"vision_share": 1.0}, "vision_share"),
        ({"memory_bytes": 0}, "memory_bytes must be above 0"),
        ({"max_itl": float("nan")}, "max_itl must be above 0"),
        ({"reload_interval": -1.0}, "reload_interval must be above 0"),
        ({"max_queue_delay": -0.1}, "max_queue_delay must be 0 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RuntimeSettings(**choices)
