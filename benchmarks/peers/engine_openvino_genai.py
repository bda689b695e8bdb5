"""OpenVINO GenAI's continuous batching with its own defaults (8-bit keys and values on most CPUs), prefix cache on."""

from __future__ import annotations

import numpy as np
import openvino
import openvino_genai
from step_loop import StepLoopPeer

KV_GIB = 1


class OpenVinoGenAiPeer(StepLoopPeer):
    def __init__(self, model: str) -> None:
        super().__init__()
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = KV_GIB
        scheduling.max_num_seqs = 32
        scheduling.max_num_batched_tokens = 512
        scheduling.enable_prefix_caching = True
        settings = {"INFERENCE_NUM_THREADS": 1}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduling, "CPU", settings)
        self._handles: dict[str, openvino_genai.GenerationHandle] = {}
        self._added = 0
        self.name = f"OpenVINO GenAI {openvino_genai.__version__}, file's weights"

    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = max_tokens
        generation.ignore_eos = True
        generation.do_sample = False
        ids = openvino.Tensor(np.array([prompt], np.int64))
        self._added += 1
        self._handles[request_id] = self._pipeline.add_request(self._added, ids, generation)

    def step(self) -> list[str]:
        self._pipeline.step()
        answered = [request_id for request_id, handle in self._handles.items() if handle.can_read()]
        for request_id in answered:
            self._handles[request_id].read()
        if not self.has_work():
            self._handles.clear()
        return answered

    def abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._handles.pop(request_id).stop()

    def has_work(self) -> bool:
        return bool(self._pipeline.has_non_finished_requests())


def make(model: str, folder: str) -> OpenVinoGenAiPeer:
    return OpenVinoGenAiPeer(model)
