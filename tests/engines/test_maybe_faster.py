"""Which engine is told of, and where."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from vtk.cli.main import main
from vtk.engines.open import maybe_faster

PICTURES = Path(__file__).parents[1] / "data/golden/toy_images"


@pytest.mark.parametrize(
    ("backend", "device", "installed", "told"),
    [
        ("ort", "cpu", True, "openvino"),
        ("ort", "cpu", False, None),
        ("ort", "cuda", True, None),
        ("openvino", "cpu", True, None),
    ],
)
def test_openvino_is_named_where_it_could_run_instead(
    backend: str, device: str, installed: bool, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.engines.open.find_spec", lambda name: name if installed else None)
    assert maybe_faster(backend, device) == told


@pytest.mark.skipif(find_spec("openvino") is None, reason="needs openvino: pip install 'vtk-deploy[openvino]'")
@pytest.mark.parametrize("backend", ["auto", "ort"])
def test_run_tells_of_it_unless_an_engine_was_asked_for(
    backend: str, toy_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = next(PICTURES.iterdir())
    command = ["run", str(toy_bundle), str(picture), "-o", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*command, "--backend", backend]) == 0
    told = f"vtk verify {toy_bundle} --backend openvino" in capsys.readouterr().err
    assert told == (backend == "auto")
