"""A decoder over paged KV on a GPU: decode steps as captured graphs, one copy in, one out and one wait per step.

The steps of the runner are written against `Device`, whose twin in the tests proves that every access is ordered. Not
yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

import numpy as np
import numpy.typing as npt
import torch

from vtk.kernels.device import Device
from vtk.kernels.ops import Ops, W
from vtk.llm_serving.core.step_inputs import AttentionMetadata, StepInputs
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.step_tensors import StepLayout, write_step
from vtk.llm_serving.runner.base import HiddenStates, Logits
from vtk.llm_serving.runner.decoder_runner import RunnerSizes

WIDTH_STEP = 16  # tables of such widths spare Triton a variant of its kernels for others
NO_TOKENS = StepInputs(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    AttentionMetadata(np.zeros(1, np.int32), np.empty(0, np.int32), np.empty((0, 0), np.int32), np.empty(0, np.int64)),
    np.empty(0, np.int64),
    (),
)


@dataclass(frozen=True)
class GraphSizes:
    """Steps of up to `max_sequences` sequences of up to `max_blocks` blocks, with one new token each, are captured.

    dtype: of activations and logits.
    """

    max_sequences: int
    max_blocks: int
    dtype: torch.dtype

    @property
    def layouts(self) -> list[StepLayout]:
        """1, 2, 4, 8, 16, 24, ... rows and the maximum: a step is padded by less than half, or by less than 8."""
        sizes = [size for size in (1, 2, 4, *range(8, self.max_sequences, 8)) if size < self.max_sequences]
        return [StepLayout(size, size, _width(self.max_blocks), size) for size in (*sizes, self.max_sequences)]


@dataclass(frozen=True, eq=False)
class _Graph:
    layout: StepLayout
    replay: Callable[[], None]


class CudaRunner(Generic[W]):
    """ModelRunner over a model whose weights lie on the device, and its operations.

    A step of one new token for each sequence replays the smallest graph that holds it; any other is launched. Rows that
    pad a graph read block 0 and store nothing. Logits cross to the host in the type of the activations.
    """

    device = "cuda"

    def __init__(
        self,
        model: Decoder[W, torch.Tensor],
        ops: Ops[W, torch.Tensor],
        backend: str,
        device: Device,
        sizes: RunnerSizes,
        graphs: GraphSizes,
    ) -> None:
        config = model.config
        self.backend = backend
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_blocks = sizes.num_blocks
        self.block_size = sizes.block_size
        self._model = model
        self._ops = ops
        self._device = device
        where, shape = device.torch_device, (config.num_kv_heads, sizes.block_size, config.head_dim)
        self._caches = [ops.allocate_cache(sizes.num_blocks, *shape, sizes.kv_dtype) for _ in range(config.num_layers)]
        layouts = graphs.layouts
        self._staging = device.pinned(layouts[-1].num_bytes, dtype=torch.uint8)
        self._logits = device.pinned(graphs.max_sequences, self.vocab_size, dtype=graphs.dtype)
        # All graphs read and write the same memory, since only one runs at a time.
        self._graph_inputs = torch.empty(layouts[-1].num_bytes, dtype=torch.uint8, device=where)
        self._graph_logits = torch.empty(graphs.max_sequences, self.vocab_size, dtype=graphs.dtype, device=where)
        self._stream = device.new_stream()
        self._stream.wait(device.record())
        # The largest first: the pool's memory then fits all others.
        self._graphs = [self._captured(layout) for layout in reversed(layouts)][::-1]

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, hidden: HiddenStates | None = None) -> Logits:
        """See ModelRunner.forward."""
        if inputs.copies:
            self._stream.run(partial(self._ops.copy_blocks, self._caches, inputs.copies))
        if not inputs.token_ids.size:
            return np.empty((0, self.vocab_size), np.float32)
        graph = self._graph_for(inputs) if hidden is None else None
        if graph is None:
            return self._launch(inputs, hidden)
        return self._replay(graph, inputs)

    def close(self) -> None:
        """Drop graphs, weights and KV memory; the runner cannot be used after."""
        del self._graphs, self._model, self._caches, self._graph_inputs, self._graph_logits

    @torch.inference_mode()
    def _captured(self, layout: StepLayout) -> _Graph:
        """A graph over `layout`, whose step has run once, on padding alone."""
        step = layout.views(self._graph_inputs)

        def work() -> None:
            self._graph_logits[: layout.tokens].copy_(self._model.forward(step, self._caches))

        self._upload(layout, NO_TOKENS)
        self._stream.run(work)
        replay = self._stream.capture(work)
        self._stream.record().synchronize()
        return _Graph(layout, replay)

    def _graph_for(self, inputs: StepInputs) -> _Graph | None:
        """None for a step in which some sequence has several new tokens, or that no graph holds."""
        sequences, width = inputs.attention.block_tables.shape
        if len(inputs.token_ids) != sequences:
            return None
        fitting = (g for g in self._graphs if sequences <= g.layout.sequences and width <= g.layout.width)
        return next(fitting, None)

    def _replay(self, graph: _Graph, inputs: StepInputs) -> Logits:
        self._upload(graph.layout, inputs)
        graph.replay()
        rows = len(inputs.token_ids)
        self._stream.run(lambda: self._logits[:rows].copy_(self._graph_logits[:rows], non_blocking=True))
        self._stream.record().synchronize()
        return _to_numpy(self._logits[torch.from_numpy(inputs.logits_rows)])

    def _upload(self, layout: StepLayout, inputs: StepInputs) -> None:
        staged = self._staged(layout, inputs, np.arange(layout.tokens))
        self._stream.run(lambda: self._graph_inputs[: len(staged)].copy_(staged, non_blocking=True))

    def _launch(self, inputs: StepInputs, hidden: HiddenStates | None) -> Logits:
        (sequences, width), rows = inputs.attention.block_tables.shape, len(inputs.logits_rows)
        layout = StepLayout(len(inputs.token_ids), sequences, _width(width), rows)
        if rows > len(self._logits):
            self._logits = self._device.pinned(rows, self.vocab_size, dtype=self._logits.dtype)
        staged = self._staged(layout, inputs, inputs.logits_rows)
        states = None if hidden is None else self._device.pinned(*hidden.shape, dtype=torch.float32)
        self._stream.run(lambda: self._compute(layout, staged, states))
        self._stream.record().synchronize()
        if hidden is not None and states is not None:
            torch.from_numpy(hidden).copy_(states)
        return _to_numpy(self._logits[:rows])

    def _staged(self, layout: StepLayout, inputs: StepInputs, logits_rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """The step in pinned memory, which no copy reads any more once the step before has ended."""
        if layout.num_bytes > len(self._staging):
            self._staging = self._device.pinned(layout.num_bytes, dtype=torch.uint8)
        write_step(layout.views(self._staging), inputs, logits_rows)
        return self._staging[: layout.num_bytes]

    def _compute(self, layout: StepLayout, staged: torch.Tensor, states: torch.Tensor | None) -> None:
        """Inputs in, a step, logits and hidden states out, all queued on the stream that is current."""
        where = self._device.torch_device
        step = layout.views(
            torch.empty(staged.shape, dtype=staged.dtype, device=where).copy_(staged, non_blocking=True)
        )
        hidden = None if states is None else torch.empty(states.shape, device=where)
        logits = self._model.forward(step, self._caches, hidden)
        self._logits[: len(logits)].copy_(logits, non_blocking=True)
        if states is not None and hidden is not None:
            states.copy_(hidden, non_blocking=True)


def _width(blocks: int) -> int:
    return -(-blocks // WIDTH_STEP) * WIDTH_STEP


def _to_numpy(logits: torch.Tensor) -> Logits:
    """float32, in memory that no later step writes."""
    result: Logits = logits.to(torch.float32, copy=True).numpy()
    return result
