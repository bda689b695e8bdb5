"""One server with a language model that means something and two bundles, as somebody would start it."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

DATA = Path(__file__).parents[2] / "data"
LANGUAGE, DETECTOR, EMBEDDER = "smollm2", "toy-deim", "tiny-dino"


@dataclass(frozen=True)
class Tour:
    """Where the server is; a picture, and what the reference implementation finds in it (boxes xyxy, best first)."""

    url: str
    grpc: str
    picture: bytes
    expected: list[dict[str, Any]]

    @property
    def data_url(self) -> str:
        return f"data:image/jpeg;base64,{base64.b64encode(self.picture).decode()}"


@pytest.fixture(scope="session")
def tour(
    tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path, toy_bundle: Path, embed_bundle: Path
) -> Iterator[Tour]:
    """`vtk serve --vision --llm` with gRPC over a model folder of three; it has ended with code 0 by SIGTERM."""
    home = tmp_path_factory.mktemp("tour")
    (home / "models").mkdir()
    shutil.copytree(toy_bundle, home / "models" / DETECTOR)
    shutil.copytree(embed_bundle, home / "models" / EMBEDDER)
    os.link(smollm2_path, home / "models" / f"{LANGUAGE}.gguf")
    command = [sys.executable, "-m", "vtk.cli.main", "serve", "--vision", "--llm", "--port", "0", "--grpc-port", "0"]
    command += ["--memory", "2", "--cpu-kvcache-space", "0.1", "--max-model-len", "1024", "--num-threads", "1"]
    with (home / "log").open("w") as log:
        environment = os.environ | {"VTK_HOME": str(home)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            yield tour_of(process, home / "log")
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def tour_of(process: subprocess.Popen[str], log: Path) -> Tour:
    assert process.stdout is not None
    lines: list[str] = []
    while not (lines and lines[-1].startswith("Serving on")):
        line = process.stdout.readline()
        assert line, f"it never became ready: {log.read_text()}"
        lines.append(line)
    grpc = next(line.split()[-1] for line in lines if line.startswith("gRPC on"))
    picture = (DATA / "golden" / "toy_images" / "000.jpg").read_bytes()
    return Tour(lines[-1].split()[2], grpc, picture, expected_detections())


def expected_detections() -> list[dict[str, Any]]:
    found = json.loads((DATA / "golden" / "toy_expected.json").read_text())
    return [
        {**item, "bbox_xyxy": [x, y, x + width, y + height]}
        for item in found
        if item["image_id"] == 1
        for x, y, width, height in [item["bbox"]]
    ]


@pytest.fixture
def size_of() -> Any:
    """The format, width and height of an encoded picture."""

    def read(data: bytes) -> tuple[str | None, int, int]:
        with Image.open(io.BytesIO(data)) as picture:
            picture.load()
            return picture.format, *picture.size

    return read
