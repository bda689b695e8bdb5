"""A folder of pictures through one model, each way in a process of its own: folder_loops.py WAY BUNDLE FOLDER.

All ways read the same files and, but for transformers and ultralytics, run the same ONNX file in float32. Prints one
line of JSON: images, seconds and processor seconds without the opening of the model, peak resident megabytes, and what
was found (detections above the bundle's threshold, or the sum of all pooled magnitudes), to check that work is equal.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from PIL import Image

from vtk.bundle import Bundle, read_bundle
from vtk.postprocess.api import postprocess
from vtk.preprocess.geometry import geometry_for

CORES = len(os.sched_getaffinity(0))
FILTERS = {"pil_bilinear": Image.Resampling.BILINEAR, "pil_bicubic": Image.Resampling.BICUBIC}
Found = Iterator[float]


class Loop:
    """What a loop needs besides its engine: tensors from files, results from raw outputs."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.manifest = bundle, bundle.manifest
        recipe = self.manifest.recipe
        assert recipe.resize == "stretch", "the loops stretch, as the models of this benchmark do"
        self.mean = np.array(recipe.mean, np.float32)[:, None, None]
        self.std = np.array(recipe.std, np.float32)[:, None, None]

    def graph(self, batch: int = 1) -> Path:
        (file,) = (a.file for a in self.manifest.artifacts if a.backend == "onnx" and a.batch == batch)
        return self.bundle.path(file)

    def tensor(self, path: Path) -> tuple[Any, tuple[int, int]]:
        """(1, 3, H, W) float32 and the picture's size, as in most tutorials."""
        picture = Image.open(path).convert("RGB")
        height, width = self.manifest.recipe.size_hw
        pixels = np.asarray(picture.resize((width, height), FILTERS[self.manifest.recipe.interpolation]))
        chw = pixels.transpose(2, 0, 1).astype(np.float32) / 255
        return np.ascontiguousarray(((chw - self.mean) / self.std)[None]), (picture.height, picture.width)

    def found(self, outputs: dict[str, Any], source_hw: tuple[int, int]) -> float:
        row = {name: array[0] for name, array in outputs.items()}
        geometry = geometry_for(self.manifest.recipe, source_hw)
        result = postprocess(row, geometry, self.manifest.post, grid_hw=self.manifest.grid_hw)
        return float(len(result)) if self.manifest.task == "detect" else float(np.abs(result.pooled).sum())  # type: ignore


def ort_session(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ort_once(loop: Loop, session: Any, path: Path) -> float:
    tensor, source_hw = loop.tensor(path)
    names = [node.name for node in session.get_outputs()]
    return loop.found(dict(zip(names, session.run(names, {"images": tensor}), strict=True)), source_hw)


def plain(loop: Loop, files: list[Path]) -> Callable[[], Found]:
    """PIL and ONNX Runtime with its default threads, one picture after the other."""
    session = ort_session(loop.graph(), 0)
    ort_once(loop, session, files[0])
    return lambda: (ort_once(loop, session, path) for path in files)


def threads(loop: Loop, files: list[Path]) -> Callable[[], Found]:
    """A thread per core does all of it, on one session with one thread per call."""
    session = ort_session(loop.graph(), 1)
    ort_once(loop, session, files[0])
    return lambda: ThreadPoolExecutor(CORES).map(lambda path: ort_once(loop, session, path), files)


def openvino_queue(loop: Loop, files: list[Path]) -> Callable[[], Found]:
    """PIL in the main thread and OpenVINO's AsyncInferQueue, compiled for throughput."""
    import openvino

    core = openvino.Core()
    hints = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(loop.graph()), "CPU", hints)
    queue, found = openvino.AsyncInferQueue(compiled), list[float]()
    names = [port.get_any_name() for port in compiled.outputs]

    def done(request: Any, source_hw: tuple[int, int]) -> None:
        found.append(loop.found({name: np.array(request.get_tensor(name).data) for name in names}, source_hw))

    queue.set_callback(done)

    def run() -> Found:
        for path in files:
            tensor, source_hw = loop.tensor(path)
            queue.start_async({"images": tensor}, source_hw)
        queue.wait_all()
        return iter(found)

    return run


def transformers_pipeline(loop: Loop, files: list[Path]) -> Callable[[], Found]:
    """The library's pipeline over a model of the same architecture and size, with random weights."""
    from hf_vision import make_pipeline

    pipe = make_pipeline(loop.manifest.family, loop.manifest.recipe.size_hw)
    pipe(str(files[0]))
    return lambda: (0.0 for _ in pipe(str(path) for path in files))


def ultralytics_predict(loop: Loop, files: list[Path]) -> Callable[[], Found]:
    """YOLOv8's own predict on its own export; only for bundles of that family."""
    from ultralytics import YOLO

    if not loop.manifest.family.startswith("yolo"):
        raise ImportError(f"ultralytics runs no {loop.manifest.family}")
    model = YOLO(loop.graph(), task="detect")
    return lambda: (float(len(result.boxes)) for result in model.predict(files, stream=True, verbose=False))


def vtk_run(loop: Loop, files: list[Path], backend: str) -> dict[str, Any]:
    """`vtk run` with its defaults, and from its profile the bound: the slowest stage, or all of them on these cores."""
    from vtk.cores import default_batch, split_cores
    from vtk.inputs import expand
    from vtk.job_request import RunOptions
    from vtk.predictor import open_predictor
    from vtk.preprocess.decode import DecodeOptions
    from vtk.profile import POOLS
    from vtk.run import run_job

    manifest, cores = loop.manifest, split_cores(CORES)
    post, batch = manifest.post, default_batch(manifest.batches, gpu=False)
    formats = ("jsonl",) if manifest.task == "detect" else ("parquet",)
    options = RunOptions(decode=DecodeOptions(), post=post, batch=batch, workers=cores.workers, formats=formats)
    plan = expand([str(files[0].parent)])
    with (
        tempfile.TemporaryDirectory() as out,
        open_predictor(
            loop.bundle, backend=backend, threads=cores.threads, lanes=cores.lanes, batches=[batch]
        ) as predictor,
    ):
        for engine in predictor.engines.values():
            engine.infer({engine.inputs[0].name: np.zeros(engine.inputs[0].shape, np.float32)})
        cpu = time.process_time()
        summary = run_job(predictor, plan, Path(out), options, lambda done, failed: None)
        cpu = time.process_time() - cpu
        found = _rows_found(Path(out), manifest.task)
    profile = summary.profile
    stages = {
        pool: sum(profile.stages[stage].cpu for stage in names) / profile.threads[pool] for pool, names in POOLS.items()
    }
    bound = max(*stages.values(), cpu / CORES)
    stage_ms = {name: round(1000 * stage.cpu / len(files), 2) for name, stage in profile.stages.items()}
    return {"seconds": summary.seconds, "cpu": cpu, "found": found, "bound": len(files) / bound, "stage_ms": stage_ms}


def _rows_found(out: Path, task: str) -> float:
    if task == "detect":
        lines = (out / "results.jsonl").read_text().splitlines()
        return float(sum(len(json.loads(line)["detections"]) for line in lines))
    import pyarrow.parquet as parquet

    table = parquet.read_table(out / "embeddings.parquet")
    return float(np.abs(np.stack(table["pooled"].to_numpy(zero_copy_only=False))).sum())


LOOPS = {
    "plain": plain,
    "threads": threads,
    "openvino queue": openvino_queue,
    "transformers": transformers_pipeline,
    "ultralytics": ultralytics_predict,
}
WAYS = ("vtk", "vtk openvino", *LOOPS)


def measure(way: str, bundle: Path, folder: Path) -> dict[str, Any]:
    loop, files = Loop(read_bundle(bundle)), sorted(folder.glob("*.jpg"))
    if way.startswith("vtk"):
        result = vtk_run(loop, files, "openvino" if way.endswith("openvino") else "ort")
    else:
        try:
            run = LOOPS[way](loop, files)
        except ImportError as error:
            return {"skipped": str(error)}
        cpu, wall = time.process_time(), time.perf_counter()
        found = sum(run())
        result = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "found": found}
    return {**result, "images": len(files), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))
