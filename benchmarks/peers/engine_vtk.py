"""Ours, by the engine's own step loop: exact or quantized."""

from __future__ import annotations

from pathlib import Path

from step_loop import StepLoopPeer

from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.sampling.params import SamplingParams

KV_GIB = 0.45  # 655 blocks of float32: 32 sequences of 320 tokens, the most that the loads have at once


class VtkPeer(StepLoopPeer):
    def __init__(self, model: str, mode: str) -> None:
        super().__init__()
        args = EngineArgs(
            max_model_len=4096,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            cpu_kvcache_space=KV_GIB,
            num_threads=1,
            linear_mode=mode,
        )
        loaded = load_engine(Path(model), args)
        self._engine = loaded.engine
        self.name = f"vtk {mode} ({loaded.runner.backend}, {args.kv_dtype} KV)"

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._engine.add(Generation(request_id, prompt, params))

    def step(self) -> list[str]:
        return [delta.request_id for delta in self._engine.step() if delta.tokens]

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._engine.abort(request_id)

    def has_work(self) -> bool:
        return self._engine.has_work


def make(model: str, folder: str, mode: str) -> VtkPeer:
    return VtkPeer(model, mode)
