"""Replicas: which prompts share one, how load spreads, and the real thing where Ray is installed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.cli.main import main
from vtk.server.prefix_routing import FREE, MAX_HEAD, choose_order, prefix_key

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
SYSTEM = {"role": "system", "content": "You answer in one word."}
NAMES = [f"replica-{index}" for index in range(8)]
KEYS = st.binary(min_size=16, max_size=16)


def key(path: str = CHAT, **body: Any) -> bytes | None:
    return prefix_key(path, json.dumps({"model": "m", **body}).encode())


def ask(text: str, *before: Any) -> list[Any]:
    return [*before, {"role": "user", "content": text}]


def test_all_turns_of_a_conversation_have_one_key() -> None:
    first = ask("Name a fruit.", SYSTEM)
    later = [*first, {"role": "assistant", "content": "Apple."}, *ask("Another?")]
    assert key(messages=first) == key(messages=later) is not None
    assert key(messages=first, temperature=0.5, stream=True) == key(messages=first)


def test_what_the_cache_would_not_share_has_another_key() -> None:
    first = ask("Name a fruit.", SYSTEM)
    keys = {
        key(messages=first),
        key(messages=first, model="other"),
        key(messages=first, cache_salt="mine"),
        key(messages=first, tools=[{"type": "function", "function": {"name": "f"}}]),
        key(messages=ask("Name a color.", SYSTEM)),
        key(COMPLETE, prompt="Name a fruit."),
        key(COMPLETE, prompt=[1, 2, 3]),
    }
    assert len(keys) == 7


def test_long_prompts_that_begin_alike_share_a_key() -> None:
    shared = "x" * MAX_HEAD
    assert key(COMPLETE, prompt=shared + "a") == key(COMPLETE, prompt=shared + "b")
    assert key(messages=ask(shared + "a")) == key(messages=ask(shared + "b"))
    assert key(COMPLETE, prompt="a" + shared) != key(COMPLETE, prompt="b" + shared)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"model":1}', b'{"model":"m","messages":[1]}', b"\xff"])
def test_what_cannot_be_read_has_no_key(body: bytes) -> None:
    assert prefix_key(CHAT, body) is None
    assert prefix_key("/v1/vision/detect", json.dumps({"model": "m", "prompt": "x"}).encode()) is None


@given(KEYS, st.permutations(NAMES))
def test_a_key_has_one_order_whatever_the_order_of_the_replicas(key: bytes, names: list[str]) -> None:
    order = choose_order(key, dict.fromkeys(names, 0))
    assert order == choose_order(key, dict.fromkeys(NAMES, 0))
    assert sorted(order) == NAMES


@given(KEYS, st.sampled_from(NAMES))
def test_a_replica_that_goes_moves_only_its_own_keys(key: bytes, gone: str) -> None:
    before = choose_order(key, dict.fromkeys(NAMES, 0))
    after = choose_order(key, dict.fromkeys([name for name in NAMES if name != gone], 0))
    assert after == [name for name in before if name != gone]


def test_keys_spread_evenly() -> None:
    """Each of 8 replicas has 1,000 of 8,000 keys, give or take 6 standard deviations of a binomial (29.6)."""
    count = Counter(choose_order(f"{index:016}".encode(), dict.fromkeys(NAMES, 0))[0] for index in range(8000))
    assert all(abs(count[name] - 1000) < 6 * 29.6 for name in NAMES)


@given(st.lists(KEYS, min_size=1, max_size=200), st.integers(1, 8), st.floats(1.1, 3))
def test_no_replica_has_more_than_its_share_and_slack(keys: list[bytes], num_replicas: int, slack: float) -> None:
    loads = dict.fromkeys(NAMES[:num_replicas], 0)
    for key in keys:
        loads[choose_order(key, loads, slack=slack)[0]] += 1
    assert max(loads.values()) <= max(FREE, slack * len(keys) / num_replicas + 1)


def test_a_popular_prefix_uses_as_many_replicas_as_it_needs() -> None:
    """Of 80 requests one may have 13, 1.25 times an eighth, so that 7 replicas have them."""
    loads = dict.fromkeys(NAMES, 0)
    chosen = []
    for _ in range(80):
        chosen.append(choose_order(b"the same for all", loads)[0])
        loads[chosen[-1]] += 1
    assert len(set(chosen[:FREE])) == 1
    assert max(loads.values()) == 13
    assert len(set(chosen)) == 7


def test_without_a_key_the_least_loaded_comes_first() -> None:
    assert choose_order(None, {"a": 2, "b": 0, "c": 1}) == ["b", "c", "a"]
    assert choose_order(b"k", {}) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replicas", "3"], "--replicas is for --ray"),
        pytest.param(
            ["--ray", "--grpc-port", "0"],
            "do not go with --ray",
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
        ),
        pytest.param(
            ["--ray"],
            "pip install 'vtk-deploy[ray]'",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="ray is there"),
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--models", str(tmp_path), *words]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install 'vtk-deploy[ray]'")
def test_two_replicas_serve(models_folder: Path, tmp_path: Path) -> None:
    """Streams, pictures, refusals; the second prompt with a long beginning finds its blocks, for every beginning."""
    words = ["--models", str(models_folder), "--port", str(free_port()), "--memory", "1", "--ray", "--replicas", "2"]
    words += ["--cpu-kvcache-space", "0.02", "--num-threads", "1", "--vision-threads", "1"]
    command = [sys.executable, "-m", "vtk.cli.main", "serve", *words]
    environment = os.environ | {"VTK_HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            url = address_of(process, tmp_path / "log")
            tour(url)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def address_of(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Serving on"):
            return line.split()[2]
    raise AssertionError(f"it never became ready: {log.read_text()}")


def tour(url: str) -> None:
    def chat(text: str, **more: Any) -> httpx.Response:
        body = {"model": "tiny-llama", "messages": ask(text), "temperature": 0, "max_tokens": 4, **more}
        return httpx.post(f"{url}{CHAT}", json=body, timeout=60)

    assert httpx.get(f"{url}/health").json()["status"] == "ready"
    for _ in range(6):
        beginning = uuid.uuid4().hex * 10
        first, second = (chat(beginning + end) for end in ("one", "two"))
        assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] < 64
        assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 256
    streamed = chat("hi", stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert chat("hi", model="none").status_code == 404
    assert chat("hi", temperature=9).status_code == 400
    assert httpx.post(f"{url}/v1/vision/detect", json={"images": ["*"]}).status_code == 400
    assert httpx.get(f"{url}/metrics").status_code == 501
    assert httpx.post(f"{url}/v2/repository/models/toy-deim/load").status_code == 403
