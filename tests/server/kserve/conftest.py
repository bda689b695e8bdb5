"""A model whose right answers are known, behind a real runtime, HTTP and gRPC servers on free ports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import uvicorn
from starlette.testclient import TestClient

from vtk.bundle import Artifact, Bundle, Label, Manifest
from vtk.engines.base import Array
from vtk.engines.fake import FakeEngine
from vtk.postprocess.recipe import PostRecipe
from vtk.predictor import Predictor
from vtk.preprocess.recipe import Recipe
from vtk.runtime import Runtime
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.kserve.grpc_server import start_grpc
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings
from vtk.serving.model_folder import FoundModel
from vtk.serving.model_table import ModelStatus, OpenedModel
from vtk.serving.settings import RuntimeSettings
from vtk.serving.vision_model import VisionModel

SIZE_HW = (4, 6)
BATCHES = (1, 4)
BASE_URL = "http://127.0.0.1:8000"


@dataclass(eq=False)
class MeanModel:
    """`logits` (N, 3): the mean of each channel; `rows` (N,) int64: the row's place in its batch.

    Clearing `gate` holds every call of an engine until it is set again; `entered` tells that one has begun. `seen`: the
    means of all rows, padding too, in the order in which they were computed.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    broken: bool = False
    opened: int = 0
    seen: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self, images: npt.NDArray[np.float32]) -> dict[str, Array]:
        self.entered.set()
        assert self.gate.wait(30)
        self.seen += images.mean(axis=(1, 2, 3)).tolist()
        return {"logits": images.mean(axis=(2, 3)), "rows": np.arange(len(images))}

    def open(self, found: FoundModel, runtime: Runtime) -> OpenedModel:
        if self.broken:
            raise RuntimeError("the weights are half copied")
        self.opened += 1
        engines = {batch: FakeEngine(self, batch=batch, size_hw=SIZE_HW) for batch in BATCHES}
        settings = runtime.settings
        model = VisionModel(
            Predictor(_bundle(found.path), engines),
            runtime.arbiter,
            name=found.name,
            version=found.version,
            max_queue_delay=settings.max_queue_delay,
            max_queued=settings.max_queued_pictures,
        )
        return OpenedModel(model, ModelStatus(found.name, found.version, "vision", state="ready"), model.close)


def _bundle(path: Path) -> Bundle:
    manifest = Manifest(
        family="mean",
        variant="S",
        layout="official",
        task="classify",
        config={},
        source={},
        recipe=Recipe(SIZE_HW),
        post=PostRecipe("classify", top_k=2),
        labels=(Label(0, "red"), Label(1, "green"), Label(2, "blue")),
        outputs=(),
        choices=(),
        artifacts=tuple(Artifact("onnx", "fp32", batch, f"model.b{batch}.onnx", "", {}, "any") for batch in BATCHES),
        files={},
        verify={},
        vtk_version="0",
    )
    return Bundle(path, manifest)


@dataclass(frozen=True, eq=False)
class Mean:
    """A runtime that serves `mean` in the versions 1 and 2; beside them in its folder is a half-copied `half`."""

    model: MeanModel
    folder: Path
    context: ServerContext


@contextmanager
def run_mean(folder: Path, **changes: object) -> Iterator[Mean]:
    """`changes`: of the runtime's settings."""
    model = MeanModel()
    for version in ("1", "2"):
        (folder / "mean" / version).mkdir(parents=True)
        (folder / "mean" / version / "manifest.json").write_text("{}")
    (folder / "half").mkdir()
    (folder / "half/model.b1.onnx").write_bytes(b"")
    settings = replace(RuntimeSettings(models=folder, kinds=frozenset({"vision"})), **changes)
    runtime = Runtime(settings, open_model=lambda found: model.open(found, runtime))
    runtime.start()
    try:
        yield Mean(model, folder, ServerContext(runtime, ServerSettings(), Metrics()))
    finally:
        model.gate.set()
        runtime.close()


@pytest.fixture
def make_mean(tmp_path: Path) -> Iterator[Callable[..., Mean]]:
    """Runtimes of a test's own, for those that change what is served or how."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(run_mean(tmp_path / str(len(list(tmp_path.iterdir()))), **changes))


@pytest.fixture(scope="module")
def shared_mean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mean]:
    with run_mean(tmp_path_factory.mktemp("mean")) as mean:
        yield mean


@pytest.fixture
def mean_model(shared_mean: Mean) -> Iterator[MeanModel]:
    """The shared model's function; let go at the end, so that nothing hangs."""
    model = shared_mean.model
    yield model
    model.gate.set()
    model.entered = threading.Event()


@pytest.fixture(scope="module")
def mean_context(shared_mean: Mean) -> ServerContext:
    return shared_mean.context


@pytest.fixture(scope="module")
def mean_client(mean_context: ServerContext) -> Iterator[TestClient]:
    """The application over the shared model, without sockets."""
    with TestClient(create_app(mean_context), base_url=BASE_URL) as client:
        yield client


@dataclass(frozen=True)
class Servers:
    """Addresses as tritonclient wants them: host and port."""

    http: str
    grpc: str


@contextmanager
def run_servers(context: ServerContext) -> Iterator[Servers]:
    """HTTP and gRPC in one event loop on a thread, as `vtk serve` has them; both have ended when the block has."""
    started: Future[Servers] = Future()
    leave = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(context, started, leave)), name="servers")
    thread.start()
    try:
        yield started.result(30)
    finally:
        leave.set()
        thread.join()


async def _serve(context: ServerContext, started: Future[Servers], leave: threading.Event) -> None:
    try:
        config = uvicorn.Config(create_app(context), host="127.0.0.1", port=0, log_config=None, http="h11")
        http = uvicorn.Server(config)
        grpc_server, grpc_port = await start_grpc(context)
        serving = asyncio.ensure_future(http.serve())
        while not http.started and not serving.done():
            await asyncio.sleep(0.01)
        assert http.started, serving.result()
        port = http.servers[0].sockets[0].getsockname()[1]
        started.set_result(Servers(f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"))
    except BaseException as error:
        started.set_exception(error)
        raise
    await asyncio.to_thread(leave.wait)
    http.should_exit = True
    await serving
    await grpc_server.stop(None)


@pytest.fixture
def serve() -> Callable[[ServerContext], object]:
    """`with serve(context) as servers`: see `run_servers`."""
    return run_servers


@pytest.fixture(scope="module")
def mean_servers(mean_context: ServerContext) -> Iterator[Servers]:
    with run_servers(mean_context) as servers:
        yield servers


def poll(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition that another thread brings about; fails after 30 s."""
    return poll
