"""The server under test as a process: started, watched from outside, killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

START_SECONDS = 300
END_SECONDS = 60
# Small enough that sequences are preempted, cached blocks evicted, and requests refused.
SETTINGS = (
    "--vision", "--llm", "--cpu-kvcache-space", "0.1", "--max-num-seqs", "16", "--max-queued-requests", "24",
    "--max-queued-pictures", "48", "--max-model-len", "2048", "--max-body-bytes", str(4 << 20),
    "--max-prompt-chars", "100000", "--scheduling-policy", "priority", "--traffic-profile",
)  # fmt: skip
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
# All of these are 0 when nothing is asked of the server.
IDLE = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vtk:vision_queue_length",
    "vtk:device_queue_length",
)


@dataclass(frozen=True)
class Usage:
    """What the process holds. sockets and files are its open descriptors; rss in bytes."""

    rss: int
    threads: int
    sockets: int
    files: int


class ServerProcess:
    """A `vtk serve`. Raises RuntimeError when it is not ready within `START_SECONDS`."""

    def __init__(self, models: Path, home: Path, *, port: int = 0, grpc_port: int = 0) -> None:
        self.log = home / "serve.log"
        command = [sys.executable, "-m", "vtk.cli.main", "serve", "--models", str(models)]
        command += [*SETTINGS, str(home / "traffic.json"), "--port", str(port), "--grpc-port", str(grpc_port)]
        with self.log.open("a") as stream:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stream, text=True, env=os.environ | {"VTK_HOME": str(home)}
            )
        started = time.monotonic()
        patience = threading.Timer(START_SECONDS, self.process.kill)
        patience.start()
        try:
            said = self._read_until_ready()
        except BaseException:
            self.kill()
            raise
        finally:
            patience.cancel()
        self.start_seconds = time.monotonic() - started
        self.port = int(re.findall(r"http://[\d.]+:(\d+)", said)[0])
        self.grpc_port = int(re.findall(r"gRPC on [\d.]+:(\d+)", said)[0])

    def _read_until_ready(self) -> str:
        assert self.process.stdout is not None
        said = ""
        while line := self.process.stdout.readline():
            said += line
            if line.startswith("Serving on"):
                return said
        raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")

    def usage(self) -> Usage:
        root = Path("/proc") / str(self.process.pid)
        status = (root / "status").read_text()
        kinds = [target.partition(":")[0] for target in map(_target, (root / "fd").iterdir())]
        return Usage(
            rss=1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0]),
            threads=int(re.findall(r"Threads:\s+(\d+)", status)[0]),
            sockets=kinds.count("socket"),
            files=len(kinds) - kinds.count("socket"),
        )

    def metrics(self) -> dict[str, float]:
        """By name, the sum over all labels."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            return totals(answer.read().decode())

    def busy(self, seconds: float) -> dict[str, float]:
        """What is still not 0 after at most so many seconds without requests."""
        end = time.monotonic() + seconds
        while True:
            found = self.metrics()
            left = {name: found.get(name, -1.0) for name in IDLE if found.get(name, -1.0) != 0}
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.2)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.kill()

    def end(self) -> int:
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -1
        finally:
            self._reap()

    def _reap(self) -> None:
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def faults(self) -> list[dict[str, Any]]:
        """Lines of the log that tell of something unexpected."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["level"] in ("error", "critical") or "traceback" in line]


def totals(text: str) -> dict[str, float]:
    """Of Prometheus' text: by name, the sum over all labels."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return "closed meanwhile"
