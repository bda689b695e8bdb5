"""Models, a runtime over them, and servers: in this process, and as a user starts one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import vtk
from vtk.exporters.family import FamilyOptions
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings

if TYPE_CHECKING:
    from vtk.runtime import Runtime
    from vtk.serving.language_model import LanguageModel

DATA = Path(__file__).parents[1] / "data"
DETECTOR, EMBEDDER, LANGUAGE = "toy-deim", "tiny-dino", "tiny-llama"
BASE_URL = "http://127.0.0.1:8000"
HIDDEN, FFN, VOCAB = 32, 48, 258
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": VOCAB,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "bos_token_id": 256,
    "eos_token_id": 257, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN),
    f"{LAYER}.input_layernorm.weight": (HIDDEN,), f"{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
    f"{LAYER}.self_attn.q_proj.weight": (HIDDEN, HIDDEN), f"{LAYER}.self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
    f"{LAYER}.self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN), f"{LAYER}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    f"{LAYER}.mlp.gate_proj.weight": (FFN, HIDDEN), f"{LAYER}.mlp.up_proj.weight": (FFN, HIDDEN),
    f"{LAYER}.mlp.down_proj.weight": (HIDDEN, FFN),
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def embed_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random DINOv3 (128 wide, 16 patches of a picture of 64x64) as a bundle with batch sizes 1 and 4."""
    output = tmp_path_factory.mktemp("embed") / "bundle"
    options = FamilyOptions(pretrain_data="lvd")
    return vtk.export(DATA / "golden/dinov3_vit_swiglu.pth", output, batches=(1, 4), size=(64, 64), options=options)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of one layer over bytes: it writes nonsense, fast. 2,048 positions, a chat template."""
    folder = tmp_path_factory.mktemp("llm") / LANGUAGE
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def models_folder(
    tmp_path_factory: pytest.TempPathFactory, toy_bundle: Path, embed_bundle: Path, tiny_llama: Path
) -> Path:
    """A model folder with all three: `toy-deim`, `tiny-dino`, `tiny-llama`."""
    folder = tmp_path_factory.mktemp("models")
    for name, source in ((DETECTOR, toy_bundle), (EMBEDDER, embed_bundle), (LANGUAGE, tiny_llama)):
        shutil.copytree(source, folder / name)
    return folder


@pytest.fixture(scope="session")
def runtime(models_folder: Path) -> Iterator[Runtime]:
    """All three models, loaded. Tests that change what is served make their own."""
    from vtk.runtime import Runtime
    from vtk.serving.settings import RuntimeSettings

    engine: Any = {"cpu_kvcache_space": 0.02, "num_threads": 1}
    runtime = Runtime(RuntimeSettings(models=models_folder, engine=engine, threads=1, memory_bytes=1 << 31))
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.close()


@pytest.fixture(scope="session")
def language(runtime: Runtime) -> Iterator[LanguageModel]:
    """The tiny Llama of the runtime. For words that mean something there is `smollm2_path`."""
    with runtime.language(LANGUAGE) as model:
        yield model


@pytest.fixture
def context(runtime: Runtime) -> ServerContext:
    """The shared runtime with default settings and metrics of its own."""
    return ServerContext(runtime, ServerSettings(), Metrics())


@pytest.fixture
def client(context: ServerContext) -> Iterator[TestClient]:
    """The application in this process, without sockets."""
    with TestClient(create_app(context), base_url=BASE_URL) as client:
        yield client


@dataclass(frozen=True, eq=False)
class RunningServer:
    """A `vtk serve` process that has said that it is ready."""

    process: subprocess.Popen[str]
    url: str
    ready_lines: tuple[str, ...]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def read_ready_lines(process: subprocess.Popen[str]) -> tuple[str, ...]:
    """What it prints up to the line with its address, or to its end."""
    lines: list[str] = []
    assert process.stdout is not None
    while not (lines and "http://" in lines[-1]) and (line := process.stdout.readline()):
        lines.append(line.rstrip("\n"))
    return tuple(lines)


@contextmanager
def run_server(folder: Path, log: Path, *words: str, **environment: str) -> Iterator[RunningServer]:
    command = [sys.executable, "-m", "vtk.cli.main", "serve", "--models", str(folder), "--port", "0", *words]
    command += ["--memory", "2"]
    if "--vision" in words or "--llm" not in words:
        command += ["--vision-threads", "1"]
    if "--llm" in words or "--vision" not in words:
        command += ["--cpu-kvcache-space", "0.02", "--num-threads", "1"]
    environment = os.environ | {"VTK_HOME": str(log.parent)} | environment
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment)
        try:
            lines = read_ready_lines(process)
            url = next((word for line in lines for word in line.split() if word.startswith("http://")), None)
            assert url is not None, f"it never became ready: {log.read_text()}"
            yield RunningServer(process, url, lines, log)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def start_server(models_folder: Path, tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    """Starts `vtk serve` over all three models with more words, on a free port; it ends with the test."""
    with ExitStack() as stack:
        count = iter(range(100))

        def start(*words: str, models: Path = models_folder, **environment: str) -> RunningServer:
            log = tmp_path / f"serve-{next(count)}.log"
            return stack.enter_context(run_server(models, log, *words, **environment))

        yield start


@pytest.fixture(scope="session")
def server(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One `vtk serve` for all tests that only ask it something."""
    with run_server(models_folder, tmp_path_factory.mktemp("serve") / "serve.log") as running:
        yield running
