"""The metrics of a real vision model, as its pictures go through."""

import asyncio
import io
from typing import Any

import numpy as np
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from vtk.server.context import ServerContext

DETECTOR = "toy-deim"


def picture(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (48, 64, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def scraped(client: TestClient) -> dict[tuple[str, str], float]:
    """Samples of the detector by name and the label that tells its parts."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = (s for family in families for s in family.samples if s.labels.get("model_name") == DETECTOR)
    return {(s.name, "".join(v for k, v in s.labels.items() if not k.startswith("model_"))): s.value for s in samples}


def test_pictures_batches_and_stages_are_counted(context: ServerContext, client: TestClient) -> None:
    before = scraped(client)

    async def answer_all() -> list[Any]:
        with context.runtime.vision(DETECTOR) as model:
            return await asyncio.gather(*(model.answer(picture(seed)) for seed in range(5)))

    answers = asyncio.run(answer_all())
    after = scraped(client)

    def grown(name: str, part: str = "") -> float:
        return after[name, part] - before.get((name, part), 0.0)

    assert grown("vtk:vision_pictures_total") == 5
    assert sum(int(size) * grown(name, size) for name, size in after if name == "vtk:vision_batches_total") >= 5
    for stage in ("decode", "preprocess", "queue", "infer", "postprocess"):
        told = sum(answer.seconds[stage] for answer in answers)
        assert abs(grown("vtk:vision_stage_seconds_total", stage) - told) < 1e-6 + 1e-6 * told
    assert after["vtk:vision_queue_length", ""] == 0
    assert 0 < after["vtk:vision_batch_occupancy", ""] <= 1
    assert after["vtk:model_state", "visionready"] == 1
