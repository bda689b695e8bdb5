"""JPEG files by nvImageCodec, here a fake that takes recorded calls only: what it gets, and what stays on the CPU."""

import importlib.util
import io
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from vtk import doctor
from vtk.cli.main import main
from vtk.errors import BackendError, ImageError, MissingDependencyError
from vtk.preprocess.decode import DEFAULT, decode
from vtk.preprocess.decode_gpu import GpuJpegDecoder, gpu_decoder, is_usual

FAKE = Path(__file__).parent / "data/nvimgcodec/fake_nvimgcodec.py"
GPU = replace(DEFAULT, device="gpu")


@pytest.fixture(scope="module")
def fake() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_nvimgcodec", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def library(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake GPU with the fake library, which has decoded its probe."""
    made = fake.Library()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", made)
    monkeypatch.setattr("vtk.engines.cuda_driver.gpu_target", lambda: "sm_90")
    gpu_decoder.cache_clear()
    gpu_decoder()
    made.asked.clear()
    yield made
    gpu_decoder.cache_clear()


def encode(mode: str = "RGB", kind: str = "JPEG", seed: int = 0, **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 56, 4), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels, "RGBA" if mode == "RGBA" else "CMYK").convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = orientation
    return tags.tobytes()


def with_frame_bits(data: bytes, offset: int, value: int) -> bytes:
    """`data` with another byte `offset` bytes after its baseline frame marker."""
    place = data.index(b"\xff\xc0") + offset
    return data[:place] + bytes([value]) + data[place + 1 :]


USUAL = {
    "baseline": encode(),
    "progressive": encode(progressive=True),
    "gray": encode("L"),
    "4:4:4": encode(subsampling=0),
    "restarts": encode(restart_marker_blocks=2),
    "upright": encode(exif=exif(1)),
    "trailing": encode() + b"more after the end",
}
OTHER = {
    "PNG": encode(kind="PNG"),
    "CMYK": encode("CMYK"),
    "RGB as such": encode(keep_rgb=True, subsampling=0),
    "EXIF 6": encode(exif=exif(6)),
}


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_files_are_decoded_by_the_library(library: Any, name: str) -> None:
    assert np.array_equal(decode(USUAL[name], GPU), decode(USUAL[name]))
    assert library.asked == [USUAL[name]]
    assert gpu_decoder().counts == {"decoded": 1}


@pytest.mark.parametrize("name", OTHER)
def test_other_files_are_not_shown_to_it(library: Any, name: str) -> None:
    assert np.array_equal(decode(OTHER[name], GPU), decode(OTHER[name]))
    assert library.asked == []
    assert not gpu_decoder().counts


@pytest.mark.parametrize("length", [0.3, 0.5, 0.9, 1.0])
def test_of_cut_files_the_cpu_says_what_is_wrong(library: Any, length: float) -> None:
    data = encode()[: int(length * len(encode())) - 2]
    with pytest.raises(ImageError) as caught:
        decode(data, GPU)
    assert caught.value.reason == "truncated"
    assert library.asked == []


def test_nothing_but_whole_files_of_eight_bit_huffman_codes_is_usual() -> None:
    data = encode()
    assert is_usual(data)
    assert not is_usual(with_frame_bits(data, 1, 0xC9)), "arithmetic codes"
    assert not is_usual(with_frame_bits(data, 1, 0xC3)), "lossless"
    assert not is_usual(with_frame_bits(data, 4, 12)), "12 bits"
    assert not any(is_usual(data[:end]) for end in range(len(data)))


@pytest.mark.parametrize("how", ["refuse", "fail"])
def test_a_file_that_it_cannot_decode_falls_back_alone(library: Any, how: str) -> None:
    getattr(library, how).add(USUAL["baseline"])
    for name in ("baseline", "gray"):
        assert np.array_equal(decode(USUAL[name], GPU), decode(USUAL[name]))
    assert gpu_decoder().counts == {"refused": 1, "decoded": 1}


def test_the_fake_takes_recorded_calls_only(fake: ModuleType) -> None:
    with pytest.raises(TypeError, match="incompatible"):
        fake.DecodeParams(apply_orientation=False)
    with pytest.raises(TypeError, match="incompatible"):
        fake.check("Decoder.decode", None, fake.DecodeParams())


def test_a_library_that_decodes_no_jpeg_is_told(fake: ModuleType) -> None:
    with pytest.raises(BackendError, match="no decoder of JPEG") as caught:
        GpuJpegDecoder(fake.Library(works=False))
    assert "nvidia-nvimgcodec-cu12[nvjpeg]" in (caught.value.hint or "")


def test_without_library_or_gpu_one_line_says_so(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_decoder.cache_clear()
    monkeypatch.setattr(library, "Decoder", None)
    with pytest.raises(BackendError, match="no NVIDIA GPU"):
        gpu_decoder()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    with pytest.raises(MissingDependencyError, match="nvidia-nvimgcodec-cu12") as caught:
        decode(USUAL["baseline"], GPU)
    assert caught.value.hint == "Run: pip install 'vtk-deploy[gpu-decode]'"


def test_the_doctor_tells_of_it(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._gpu_decoding().state == "ok"
    gpu_decoder.cache_clear()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    found = doctor._gpu_decoding()
    assert (found.state, found.fix) == ("missing", "Run: pip install 'vtk-deploy[gpu-decode]'")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Usual, other, cut and empty files."""
    root = tmp_path / "in"
    root.mkdir()
    for index, data in enumerate([*USUAL.values(), *OTHER.values(), encode(seed=5)[:900], b""]):
        (root / f"{index:02}.jpg").write_bytes(data)
    return root


@pytest.fixture
def run(stub: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Callable[..., int]:
    """`vtk run` over the folder with the stub for a model."""
    model = stub.StubModel()
    monkeypatch.setattr("vtk.bundle.read_bundle", lambda path: model.bundle)
    monkeypatch.setattr("vtk.predictor.open_predictor", lambda bundle, **options: nullcontext(model))
    return lambda out, *options: main(["run", "stub", str(folder), "-o", str(out), *options])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_has_the_rows_of_the_cpu(
    library: Any, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library.fail.add(USUAL["progressive"])
    assert run(tmp_path / "cpu") == 1
    assert library.asked == []
    assert run(tmp_path / "gpu", "--decode", "gpu", "--profile") == 1
    for name in ("results.jsonl", "ledger.jsonl"):
        assert lines(tmp_path / "gpu" / name) == lines(tmp_path / "cpu" / name)
    assert len(library.asked) == len(USUAL)
    told = capsys.readouterr().out
    assert f"decoded on the GPU: {len(USUAL) - 1}; left to the CPU: {len(OTHER) + 3}, of which it refused 1" in told


def test_a_run_without_a_gpu_stops_before_any_work(
    library: Any,
    run: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_decoder.cache_clear()
    monkeypatch.setattr("vtk.engines.cuda_driver.gpu_target", lambda: None)
    assert run(tmp_path / "out", "--decode", "gpu") == 2
    assert "--decode gpu needs an NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fast_decode_is_refused_with_it(library: Any, run: Callable[..., int], tmp_path: Path) -> None:
    assert run(tmp_path / "out", "--decode", "gpu", "--fast-decode") == 2
