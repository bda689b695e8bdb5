"""A language model on compiled kernels never imports torch: half a gigabyte of memory, and seconds of every start."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vtk.demo_weights import smollm2
from vtk.errors import InputError
from vtk.kernels import cpu_library

pytestmark = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
ABSENT = "import sys; sys.modules['torch'] = None\n"  # whoever imports it fails
MAIN = "from vtk.cli.main import main; code = main(sys.argv[1:])\n"
PEAK = "print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"  # KiB
MAX_KIB = 400 << 10  # the file and its packed copy are never whole in memory together


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return smollm2()
    except InputError as error:
        pytest.skip(str(error))


def run(code: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ABSENT + code, *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)


def post(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer, whatever the status."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_generate(model: Path) -> None:
    done = run(
        MAIN + PEAK + "sys.exit(code)",
        "generate", str(model), "--prompt", "Hi", "--n", "2", "--json", "--logprobs", "1", "--max-tokens", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on cpu-" in done.stderr
    assert int(done.stdout.splitlines()[-1]) < MAX_KIB


def test_chat(model: Path) -> None:
    done = run(MAIN + "sys.exit(code)", "chat", str(model), "--max-tokens", "3", stdin="Hi\nand now?\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("3 tokens, TTFT") == 2


def test_serve(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ABSENT + MAIN + PEAK + "sys.exit(code)", "serve", str(model), "--port", "0"]
    environment = os.environ | {"VTK_HOME": str(tmp_path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if "Serving on" in line)
            found = re.search(r"http://\S+", line)
            assert found is not None
            ask_everything(found[0], model.stem)
        finally:
            server.send_signal(signal.SIGTERM)
        assert int(server.stdout.read().splitlines()[-1]) < MAX_KIB
    assert server.returncode == 0


def ask_everything(url: str, model: str) -> None:
    """Answers with whatever needs no grammar; where one is needed, the extra is named."""
    messages = [{"role": "user", "content": "Name a color."}]
    chat = {"model": model, "messages": messages, "max_tokens": 3, "temperature": 0}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    for free in ({}, {"tools": tools}, {"tools": tools, "tool_choice": "none"}):
        status, answer = post(f"{url}/v1/chat/completions", chat | free)
        assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    status, answer = post(f"{url}/v1/embeddings", {"model": model, "input": "a small boat"})
    assert (status, len(answer["data"][0]["embedding"])) == (200, 576)
    for bound in ({"tools": tools, "tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
        status, answer = post(f"{url}/v1/chat/completions", chat | bound)
        assert status == 501
        assert "pip install 'vtk-deploy[structured]'" in answer["error"]["message"]


def test_embeddings_and_every_cache_type(model: Path) -> None:
    """What the engine does beside generating: hidden states, prompt log-probabilities, copies of blocks."""
    done = run(
        """
from pathlib import Path
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import make_engine
from vtk.llm_serving.loading.source import load_model_source
from vtk.llm_serving.sampling.params import SamplingParams
source = load_model_source(Path(sys.argv[1]))
params = SamplingParams(n=2, max_tokens=3, seed=1, prompt_logprobs=1)
for mode, kv in (("exact", "float32"), ("exact", "int8"), ("quantized", "float16")):
    args = EngineArgs(linear_mode=mode, kv_cache_dtype=kv, num_gpu_blocks_override=64, num_threads=1)
    engine = make_engine(source, args).engine
    engine.add(Generation("text", list(range(5, 30)), params))
    engine.add(Generation("pooled", list(range(5, 30)), SamplingParams(max_tokens=1), embed=True))
    while engine.has_work:
        engine.step()
""",
        str(model),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "what", "extra"),
    [
        (["--backend", "reference"], "The backend 'reference'", "torch"),
        (["--backend", "cuda"], "The backend 'cuda'", "gpu"),
        (["--regex", "[0-9]+"], "structured_outputs", "structured"),
    ],
)
def test_what_needs_it_says_so_and_names_the_extra(model: Path, options: list[str], what: str, extra: str) -> None:
    done = run(MAIN + "sys.exit(code)", "generate", str(model), "--prompt", "Hi", *options)
    assert done.returncode == 2
    assert f"{what} needs the package 'torch'" in done.stderr
    assert f"pip install 'vtk-deploy[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
