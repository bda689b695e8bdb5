"""A vision server over models whose outputs follow from the picture's pixels, and pictures to send."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from vtk.bundle import Artifact, Bundle, Label, Manifest
from vtk.engines.base import Array
from vtk.engines.fake import FakeEngine
from vtk.errors import NotFoundError, VtkError
from vtk.postprocess.recipe import PostKind, PostRecipe
from vtk.predictor import Predictor
from vtk.preprocess.recipe import Recipe
from vtk.server.app import Faults
from vtk.server.errors import error_response
from vtk.server.limits import BodyLimit
from vtk.server.pictures import PictureReader
from vtk.server.settings import Limits, ServerSettings
from vtk.server.vision.routes import router
from vtk.serving.arbiter import Arbiter
from vtk.serving.model_table import ModelStatus
from vtk.serving.vision_model import VisionModel

SIZE_HW = (8, 8)
LABELS = (Label(1, "cat"), Label(7, "dog"), Label(9, "hot air balloon"))
TASK_OF: dict[PostKind, str] = {"detr": "detect", "yolo": "detect", "embed": "embed", "classify": "classify"}


def outputs_of(kind: PostKind, images: npt.NDArray[np.float32]) -> dict[str, Array]:
    """Every number follows from the mean color of its own picture, 0..1."""
    batch = len(images)
    means = images.mean(axis=(2, 3))
    logits = np.log(means + 1e-3) - np.log(1 - means + 1e-3)
    if kind == "embed":
        return {"cls": means}
    if kind == "classify":
        return {"logits": logits}
    box = np.array([0.5, 0.5, 0.5, 0.25], np.float32)
    if kind == "detr":
        return {"logits": logits[:, None], "boxes": np.tile(box, (batch, 1, 1))}
    anchors = np.tile(box * SIZE_HW[0], (batch, 2, 1)).transpose(0, 2, 1)
    return {"output0": np.concatenate([anchors, np.repeat(means[:, :, None], 2, axis=2)], axis=1)}


def bundle_of(kind: PostKind) -> Bundle:
    manifest = Manifest(
        family="tiny",
        variant="s",
        layout="official",
        task=TASK_OF[kind],
        config={},
        source={"tensor_digest": "d" * 64},
        recipe=Recipe(SIZE_HW),
        post=PostRecipe(kind, score_threshold=0.25, top_k=2),
        labels=() if kind == "embed" else LABELS,
        outputs=(),
        choices=(),
        artifacts=tuple(
            Artifact("onnx", "fp32", batch, f"model.b{batch}.onnx", "0" * 64, {}, "any") for batch in (1, 4)
        ),
        files={},
        verify={},
        vtk_version="0",
    )
    return Bundle(Path("bundle"), manifest)


Hook = Callable[[npt.NDArray[np.float32]], None]


def vision_model(
    kind: PostKind, name: str, *, version: str = "1", hook: Hook | None = None, **limits: int
) -> VisionModel:
    def infer(images: npt.NDArray[np.float32]) -> dict[str, Array]:
        if hook is not None and images.any():  # the fake engine first looks at the outputs for zeros
            hook(images)
        return outputs_of(kind, images)

    engines = {batch: FakeEngine(infer, batch=batch, size_hw=SIZE_HW) for batch in (1, 4)}
    return VisionModel(Predictor(bundle_of(kind), engines), Arbiter(), name=name, version=version, **limits)


@dataclass
class FakeRuntime:
    """Leases like the real one; `states` overrides what `statuses` says of a model."""

    models: list[VisionModel]
    states: Mapping[str, str] = field(default_factory=dict)
    leases: int = 0

    @contextmanager
    def vision(self, name: str, version: str | None = None) -> Iterator[VisionModel]:
        found = [model for model in self.models if model.name == name and version in (None, model.version)]
        if not found:
            raise NotFoundError(f"No model '{name}' is served.")
        self.leases += 1
        try:
            yield max(found, key=lambda model: int(model.version))
        finally:
            self.leases -= 1

    def statuses(self) -> list[ModelStatus]:
        return [
            ModelStatus(
                name=model.name,
                version=model.version,
                kind="vision",
                task=model.bundle.manifest.task,
                state=self.states.get(model.name, "ready"),
            )
            for model in self.models
        ]


@dataclass(frozen=True, eq=False)
class Served:
    """The application, its runtime, and a client in this process."""

    app: FastAPI
    runtime: FakeRuntime
    client: TestClient

    def post(self, task: str, body: Mapping[str, Any]) -> Any:
        return self.client.post(f"/v1/vision/{task}", json=body)

    def post_files(self, task: str, pictures: Sequence[bytes], **options: Any) -> Any:
        files = [("images", ("picture", picture)) for picture in pictures]
        return self.client.post(f"/v1/vision/{task}", files=files, data=options)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serves models with settings of the test; `states` as the runtime tells them."""
    with ExitStack() as stack:

        def start(
            *models: VisionModel,
            settings: ServerSettings | None = None,
            reader: PictureReader | None = None,
            states: Mapping[str, str] | None = None,
            **limits: int,
        ) -> Served:
            chosen = replace(settings or ServerSettings(), limits=Limits(**limits))
            runtime = FakeRuntime(list(models), states or {})
            context: Any = SimpleNamespace(runtime=runtime, settings=chosen, metrics=None)
            app = FastAPI()
            app.include_router(router(context, reader))
            app.add_exception_handler(VtkError, lambda request, error: error_response(error, request.scope))
            app.add_middleware(Faults)
            app.add_middleware(BodyLimit, limits=chosen.limits)
            for model in models:
                stack.callback(model.close)
            return Served(app, runtime, stack.enter_context(TestClient(app)))

        yield start


@pytest.fixture
def make_model() -> Callable[..., VisionModel]:
    return vision_model


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """A picture of one color (or of given pixels), encoded."""

    def encode(
        color: tuple[int, int, int] = (128, 64, 32),
        size_wh: tuple[int, int] = (24, 16),
        format: str = "PNG",
        **options: Any,
    ) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", size_wh, color).save(stream, format, **options)
        return stream.getvalue()

    return encode
