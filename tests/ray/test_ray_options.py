"""What `vtk run --ray` refuses, without Ray."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from vtk.cli.main import main


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ray-workers", "3"], "--ray-workers is for --ray"),
        (["--ray", "--shard", "1/2"], "--shard does not go with --ray"),
        (["--ray", "auto", "--profile"], "--profile does not go with --ray"),
        pytest.param(
            ["--ray"],
            "pip install 'vtk-deploy[ray]'",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="ray is there"),
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], told: str, toy_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = Path(__file__).parents[1] / "data/golden/toy_images"
    assert main(["run", str(toy_bundle), str(pictures), "-o", str(tmp_path / "out"), *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
