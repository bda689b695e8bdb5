"""A language model on compiled kernels never imports torch: half a gigabyte of memory, and seconds of every start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vtk.demo_weights import smollm2
from vtk.errors import InputError
from vtk.kernels import cpu_library

pytestmark = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")
ABSENT = "import sys; sys.modules['torch'] = None\n"  # whoever imports it fails


@pytest.fixture(scope="module")
def model() -> Path:
    try:
        return smollm2()
    except InputError as error:
        pytest.skip(str(error))


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ABSENT + code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_generate(model: Path) -> None:
    done = run(
        "from vtk.cli.main import main; sys.exit(main(sys.argv[1:]))",
        "generate", str(model), "--prompt", "Hi", "--n", "2", "--json", "--logprobs", "1", "--max-tokens", "3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on cpu-" in done.stderr


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


@pytest.mark.parametrize("backend", ["reference", "cuda"])
def test_a_backend_that_needs_it_says_so(model: Path, backend: str) -> None:
    done = run(
        "from vtk.cli.main import main; sys.exit(main(sys.argv[1:]))",
        "generate", str(model), "--prompt", "Hi", "--backend", backend,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"The backend '{backend}' needs the package 'torch'" in done.stderr
    assert "Traceback" not in done.stderr
