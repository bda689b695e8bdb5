"""A burst of pictures during chat streams: what the arbiter does for the time between tokens, and what it costs.

    python benchmarks/serve_burst.py [--streams 16] [--pictures 200] [--detectors 2] [--max-itl-ms 200] [--rounds 3]

One process, one language model (SmolLM2-135M), `--detectors` vision models (the toy DEIM bundle, exported here unless
--bundle names another), the same streams and pictures for all: chat alone; chat and `--pictures` at once, with the
arbiter; the same without one, where everybody uses the device as they like. The three take turns, round by round.
Prints the time between the tokens of a stream while pictures are served, and pictures a second. Exits with 1 unless p95
is within `--max-itl-ms` with the arbiter and beyond it without.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import vtk
from vtk.bundle import read_bundle
from vtk.demo_weights import smollm2
from vtk.exporters.family import FamilyOptions
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.predictor import open_predictor
from vtk.serving.arbiter import Arbiter, VisionTurn
from vtk.serving.language_model import LanguageModel
from vtk.serving.turns import EngineState
from vtk.serving.vision_model import VisionModel

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden"
PICTURES = sorted((ROOT / "vtk" / "assets" / "pictures").glob("*.[jp][pn]g"))
ALONE_SECONDS = 5.0


class Free(Arbiter):
    """What a server without an arbiter does: nobody waits for anybody."""

    @contextmanager
    def language_turn(self, *, decoding: Callable[[], bool], engine: EngineState) -> Iterator[None]:
        yield

    @contextmanager
    def vision_turn(self, *, seconds: float, deadline: float | None = None) -> Iterator[VisionTurn]:
        yield _FreeTurn(self)


class _FreeTurn(VisionTurn):
    def may_go_on(self, seconds: float) -> bool:
        return True


@dataclass
class Figures:
    """Of one configuration over all rounds: seconds between tokens, and pictures a second."""

    itl: list[float] = field(default_factory=list)
    pictures: list[float] = field(default_factory=list)


async def measure(
    chat: LanguageModel, detectors: Sequence[VisionModel], num_streams: int, burst: Sequence[bytes]
) -> Figures:
    """Start the streams, wait until all have a token, send the burst, and stop when it is answered."""
    figures = Figures()
    watching = False
    started = [asyncio.Event() for _ in range(num_streams)]
    params = SamplingParams(temperature=0, max_tokens=chat.max_model_len - 200, ignore_eos=True)

    async def stream(index: int) -> None:
        prompt = [{"role": "user", "content": f"Tell me a long story about the number {index}."}]
        last = 0.0
        async for _ in chat.stream(await chat.prepare(prompt, params, request_id=f"s{index}")):
            now = time.monotonic()
            if watching and last:
                figures.itl.append(now - last)
            last = now
            started[index].set()

    tasks = [asyncio.ensure_future(stream(index)) for index in range(num_streams)]
    await asyncio.gather(*(event.wait() for event in started))
    watching = True
    begun = time.monotonic()
    if burst:
        await asyncio.gather(*(detectors[i % len(detectors)].answer(picture) for i, picture in enumerate(burst)))
        figures.pictures.append(len(burst) / (time.monotonic() - begun))
    else:
        await asyncio.sleep(ALONE_SECONDS)
    watching = False
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return figures


@contextmanager
def toy_bundle(given: Path | None) -> Iterator[Path]:
    """The bundle to serve, exported into a scratch folder where none is given."""
    if given is not None:
        yield given
        return
    options = FamilyOptions(family="deim", class_names=tuple(json.loads((GOLDEN / "toy_labels.json").read_text())))
    with tempfile.TemporaryDirectory() as scratch:
        yield vtk.export(GOLDEN / "toy_deim.pth", Path(scratch) / "toy", batches=(1, 8), options=options)


def row(name: str, figures: Figures) -> str:
    itl = 1000 * np.array(figures.itl)
    p50, p95 = np.percentile(itl, (50, 95))
    rate = f"{np.median(figures.pictures):6.1f}" if figures.pictures else "     -"
    return f"{name:<22} ITL ms p50 {p50:6.1f}  p95 {p95:6.1f}  max {itl.max():6.1f}   pictures/s {rate}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--detectors", type=int, default=2)
    parser.add_argument("--max-itl-ms", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    limit = args.max_itl_ms / 1000
    burst = [PICTURES[index % len(PICTURES)].read_bytes() for index in range(args.pictures)]
    engine_args = EngineArgs(max_model_len=2048, max_num_seqs=args.streams + 1)
    arbiters = {"with the arbiter": Arbiter(max_itl=limit), "without": Free(max_itl=limit)}
    found = {name: Figures() for name in ("chat alone", *arbiters)}
    with toy_bundle(args.bundle) as folder:
        bundle = read_bundle(folder)
        for _ in range(args.rounds):
            for name, figures in found.items():
                arbiter = arbiters.get(name, arbiters["with the arbiter"])
                loaded = load_engine(args.model or smollm2(), engine_args)
                chat = LanguageModel(loaded, engine_args, arbiter, name="chat")
                detectors = [
                    VisionModel(open_predictor(bundle), arbiter, name=f"detector-{i}") for i in range(args.detectors)
                ]
                measured = asyncio.run(measure(chat, detectors, args.streams, burst if name in arbiters else []))
                for model in (chat, *detectors):
                    model.close()
                figures.itl += measured.itl
                figures.pictures += measured.pictures
                print(f"  {row(name, measured)}", flush=True)
    for name, figures in found.items():
        print(row(name, figures))
    with_p95, without_p95 = (np.percentile(found[name].itl, 95) for name in arbiters)
    held = with_p95 <= limit < without_p95
    print(f"bound {args.max_itl_ms:.0f} ms: {'held with the arbiter, broken without' if held else 'NOT shown'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
