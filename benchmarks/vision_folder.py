"""A folder of pictures through `vtk run` and through what people use instead, in one go on the same files.

python benchmarks/vision_folder.py [--pictures 200] [--rounds 3] [--models light,dfine,dinov3] [--bundles DIR]

Every way runs in a process of its own, in turns (round after round, not way after way), so that other work on the
machine meets all of them. Seconds are without the opening of the model. Figures: medians of images/s and of processor
milliseconds per picture, the highest peak of resident memory; `found` must be equal where the same graph runs. The
bound is that of the same `vtk run`: its slowest pool of threads by their processor time, or all processor time over all
cores; it can be reached on a machine without other work only. Exits with 1 when `vtk run` is behind a peer in images/s,
or below 0.9 of its bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "tests" / "data" / "golden"
LOOPS = HERE / "peers" / "folder_loops.py"
WAYS = ("vtk", "vtk openvino", "plain", "threads", "openvino queue", "transformers", "ultralytics")
BOUND = 0.9
# width, height and share of the pictures: of phones, of the web, of data sets
SIZES = ((1920, 1080, 0.25), (1280, 720, 0.25), (640, 480, 0.5))


@dataclass(frozen=True)
class Model:
    """checkpoint: a file, or the timm model whose random weights are taken."""

    title: str
    checkpoint: str
    options: tuple[str, ...]


MODELS = {
    "light": Model("DEIMv2-Atto at 320", "deimv2_atto.pth", ()),
    "dfine": Model("D-FINE-N at 640", "dfine_n.pth", ()),
    "dinov3": Model("DINOv3-S/16 at 224", "timm:vit_small_patch16_dinov3", ("--size", "224")),
}


def make_pictures(folder: Path, count: int) -> None:
    """JPEG of quality 90 and usual sizes, tiled from scikit-image's photographs; no two are equal."""
    from skimage import data

    tiles = [data.astronaut(), data.coffee(), data.chelsea(), data.rocket()]
    number = 0
    for width, height, share in SIZES:
        for _ in range(round(count * share)):
            picture = np.roll(_tiled(tiles, number, height, width), 37 * number, axis=1)
            Image.fromarray(picture).save(folder / f"{(number * 7919) % 100_000:05}.jpg", quality=90)
            number += 1


def _tiled(tiles: Sequence[npt.NDArray[np.uint8]], first: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    picture, number = np.zeros((height, width, 3), np.uint8), first
    for y in range(0, height, 300):
        x = 0
        while x < width:
            tile = tiles[number % len(tiles)][: height - y, : width - x]
            picture[y : y + tile.shape[0], x : x + tile.shape[1]] = tile
            x, number = x + tile.shape[1], number + 1
    return picture


def make_bundle(model: Model, folder: Path) -> Path:
    """The exported bundle, made once per folder."""
    bundle = folder / model.title.replace(" ", "_").replace("/", "-")
    if (bundle / "manifest.json").exists():
        return bundle
    checkpoint = GOLDEN / model.checkpoint
    if model.checkpoint.startswith("timm:"):
        checkpoint = folder / "random.safetensors"
        _save_random(model.checkpoint.removeprefix("timm:"), checkpoint)
    command = [sys.executable, "-m", "vtk.cli.main", "export", str(checkpoint), "-o", str(bundle), *model.options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return bundle


def _save_random(name: str, path: Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weights = timm.create_model(name, pretrained=False).state_dict()
    save_file({key: value.contiguous() for key, value in weights.items()}, path)


def run_way(way: str, bundle: Path, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(LOOPS), way, str(bundle), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return {"skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@dataclass(frozen=True)
class Figures:
    """Of one way: images per second, processor milliseconds per picture, peak megabytes, and the share of the bound."""

    rate: float
    cpu_ms: float
    peak_mb: float
    found: float
    efficiency: float | None

    @classmethod
    def of(cls, runs: Sequence[dict[str, Any]]) -> Figures:
        shares = [run["images"] / run["seconds"] / run["bound"] for run in runs if "bound" in run]
        return cls(
            statistics.median(run["images"] / run["seconds"] for run in runs),
            statistics.median(1000 * run["cpu"] / run["images"] for run in runs),
            max(run["peak_mb"] for run in runs),
            runs[0]["found"],
            statistics.median(shares) if shares else None,
        )


def compare(bundle: Path, folder: Path, ways: Sequence[str], rounds: int) -> dict[str, Figures]:
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    skipped: dict[str, str] = {}
    for number in range(rounds):
        for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
            if way in skipped:
                continue
            result = run_way(way, bundle, folder)
            if "skipped" in result:
                skipped[way] = result["skipped"]
                print(f"  {way}: left out: {result['skipped']}", flush=True)
            else:
                runs[way].append(result)
                if "stage_ms" in result and number == 0:
                    print(f"  {way}: processor ms per picture {result['stage_ms']}", flush=True)
    return {way: Figures.of(found) for way, found in runs.items() if found}


def lines(figures: dict[str, Figures]) -> Iterator[str]:
    yield f"  {'':<16}{'images/s':>10}{'cpu ms':>9}{'peak MB':>9}{'found':>12}{'of bound':>10}"
    for way, row in figures.items():
        share = "" if row.efficiency is None else f"{row.efficiency:.0%}"
        yield f"  {way:<16}{row.rate:>10.1f}{row.cpu_ms:>9.1f}{row.peak_mb:>9.0f}{row.found:>12.3f}{share:>10}"


def shortfalls(figures: dict[str, Figures]) -> Iterator[str]:
    """Peers that are ahead of the better of the two backends, and a bound that is not reached."""
    ours = {way: row for way, row in figures.items() if way.startswith("vtk")}
    if not ours:
        yield "vtk run failed"
        return
    best = max(row.rate for row in ours.values())
    yield from (f"behind {way}: {row.rate:.1f}" for way, row in figures.items() if way not in ours and row.rate > best)
    share = max(row.efficiency or 0 for row in ours.values())
    if share < BOUND:
        yield f"{share:.0%} of the bound"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--bundles", type=Path, help="keep the exported bundles here")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder, bundles = Path(scratch) / "in", args.bundles or Path(scratch) / "bundles"
        folder.mkdir()
        bundles.mkdir(parents=True, exist_ok=True)
        make_pictures(folder, args.pictures)
        for name in args.models.split(","):
            model = MODELS[name]
            print(f"{model.title}, {args.pictures} pictures, {args.rounds} rounds", flush=True)
            figures = compare(make_bundle(model, bundles), folder, args.ways.split(","), args.rounds)
            missed = list(shortfalls(figures))
            print("\n".join([*lines(figures), *(f"  MISSED: {text}" for text in missed)]), flush=True)
            failed = failed or bool(missed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
