"""vLLM's CPU build in this process, in float32, eager, its prefix cache on."""

from __future__ import annotations

import os

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

import vllm
from step_loop import StepLoopPeer
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine


class VllmPeer(StepLoopPeer):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                dtype="float32",
                enforce_eager=True,
                max_model_len=4096,
                max_num_seqs=32,
                max_num_batched_tokens=512,
                enable_prefix_caching=True,
            )
        )
        self.name = f"vllm-cpu {vllm.__version__} float32"

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        params = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(request_id, {"prompt_token_ids": prompt}, params)

    def step(self) -> list[str]:
        return [output.request_id for output in self._engine.step()]

    def abort(self, request_ids: list[str]) -> None:
        self._engine.abort_request(request_ids)

    def has_work(self) -> bool:
        return self._engine.has_unfinished_requests()


def make(model: str, folder: str) -> VllmPeer:
    return VllmPeer(folder)
