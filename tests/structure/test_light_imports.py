"""What needs no language model needs none of its packages: bundles are served where torch is not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['torch', 'tokenizers', 'jinja2', 'xgrammar', 'transformers']))"


@pytest.mark.parametrize(
    "module", ["vtk.server.launch", "vtk.runtime", "vtk.cli.serve", "vtk.predictor", "vtk.engine_adding"]
)
def test_it_is_imported_without_torch(module: str) -> None:
    code = f"{WITHOUT}; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
