"""Pooled embeddings are the mean of transformers' last hidden states, and change nobody's output."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from vtk.kernels import cpu_library
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.sampling.params import SamplingParams

if TYPE_CHECKING:
    from conftest import TinyModel

NO_KERNELS = pytest.mark.skipif(not cpu_library.available()[0], reason=f"no kernels: {cpu_library.available()[1]}")


@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=NO_KERNELS)])
@pytest.mark.parametrize(("chunk", "blocks"), [(512, 256), (17, 256), (40, 12)])
def test_embeddings_are_the_mean_of_the_last_hidden_states(
    tiny: "TinyModel", backend: str, chunk: int, blocks: int
) -> None:
    """Whole, in chunks, and preempted for want of blocks; each prompt is generated from at the same time."""
    args = EngineArgs(max_model_len=180, max_num_seqs=16, max_num_batched_tokens=chunk, num_gpu_blocks_override=blocks)
    engine = load_engine(tiny.folder, replace(args, backend=backend)).engine  # type: ignore[arg-type]
    embeddings: dict[int, Any] = {}
    outputs: dict[int, list[int]] = {index: [] for index in range(len(tiny.prompts))}
    for index, prompt in enumerate(tiny.prompts):
        greedy = SamplingParams(temperature=0, max_tokens=len(tiny.outputs[index]))
        engine.add(Generation(str(index), prompt, greedy))
        engine.add(Generation(f"e{index}", prompt, SamplingParams(max_tokens=1), embed=True))
    while engine.has_work:
        for delta in engine.step():
            if delta.request_id.startswith("e"):
                embeddings[int(delta.request_id[1:])] = delta.embedding
            else:
                assert delta.embedding is None
                outputs[int(delta.request_id)] += [sampled.token for sampled in delta.tokens]
        engine.scheduler.check_integrity()
    assert list(outputs.values()) == tiny.outputs
    assert engine.scheduler.num_preemptions > 0 or blocks > 12
    base = tiny.reference.base_model
    for index, prompt in enumerate(tiny.prompts):
        with torch.no_grad():
            hidden = base(torch.tensor([prompt])).last_hidden_state[0]
        expected = hidden.mean(dim=0).numpy()
        assert embeddings[index].dtype == np.float32
        np.testing.assert_allclose(embeddings[index], expected, rtol=0, atol=1e-4)
