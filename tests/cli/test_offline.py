"""Case V66: no verb reaches for the network, nor installs anything while it runs; the server's test is its own."""

import os
import subprocess
import sys
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
CHECKPOINT = DATA / "golden" / "toy_deim.pth"
PICTURES = DATA / "golden" / "toy_images"
# One process for all of them: most of the time goes into imports.
RUN = """
import sys

from vtk.cli.main import main

for line in sys.stdin.read().splitlines():
    code = main(line.split("\\t"))
    assert code == 0, (line, code)
print("all done")
"""


def offline(code: str, told: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """`code` in a process that can neither connect nor install."""
    environment = os.environ | {"PYTHONPATH": str(DATA / "offline"), "BLOCKED_LOG": str(tmp_path / "blocked.log")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, input=told, env=environment, capture_output=True, text=True, timeout=300)


def test_every_verb_works_with_network_and_installer_blocked(smollm2_path: Path, tmp_path: Path) -> None:
    bundle, picture = str(tmp_path / "bundle"), str(min(PICTURES.iterdir()))
    verbs = [
        ["inspect", str(CHECKPOINT)],
        ["export", str(CHECKPOINT), "-o", bundle, "--onnx", "--batch", "1", "--family", "deim"],
        ["verify", bundle],
        ["run", bundle, picture, "-o", str(tmp_path / "out")],
        ["generate", str(smollm2_path), "--prompt", "Hi", "--max-tokens", "1"],
        ["doctor"],
    ]
    done = offline(RUN, "\n".join(map("\t".join, verbs)), tmp_path)
    assert done.stdout.endswith("all done\n"), done.stderr
    assert not (tmp_path / "blocked.log").exists(), (tmp_path / "blocked.log").read_text()


def test_the_block_holds(tmp_path: Path) -> None:
    for attempt in (
        "import socket; socket.create_connection(('192.0.2.1', 80))",
        "import socket; socket.getaddrinfo('example.com', 80)",
        "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'install', 'x'])",
    ):
        assert "PermissionError" in offline(attempt, "", tmp_path).stderr, attempt
    assert len((tmp_path / "blocked.log").read_text().splitlines()) == 3
