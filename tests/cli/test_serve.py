"""The flags of vtk serve: where each one goes, what is refused, and the file that can hold them."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from vtk.cli.main import build_parser, main
from vtk.cli.serve import add_arguments, read_keys, runtime_settings, server_settings
from vtk.cli.serve_config import ConfigParser, merge_config
from vtk.errors import InputError, UsageError
from vtk.llm_serving.args import EngineOptions
from vtk.server.settings import Limits, ServerSettings
from vtk.serving.settings import RuntimeSettings, default_traffic_profile

PROFILE = {"traffic_profile": default_traffic_profile()}


def parsed(*words: str) -> argparse.Namespace:
    """As `vtk serve WORDS`, the file of --config included."""
    parser = ConfigParser(prog="serve.yaml", add_help=False)
    add_arguments(parser)
    return merge_config(build_parser().parse_args(["serve", *words]), parser)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Writes a serve.yaml and gives the words that name it."""

    def write(text: str) -> list[str]:
        path = tmp_path / "serve.yaml"
        path.write_text(text)
        return ["--config", str(path)]

    return write


def test_without_flags_the_settings_keep_their_defaults() -> None:
    args = parsed()
    assert server_settings(args) == ServerSettings()
    assert runtime_settings(args) == RuntimeSettings(**PROFILE)


SERVER_FLAGS: list[tuple[list[str], dict[str, Any]]] = [
    (["--host", "0.0.0.0"], {"host": "0.0.0.0"}),
    (["--port", "0"], {"port": 0}),
    (["--grpc-port", "8001"], {"grpc_port": 8001}),
    (["--allow-unauthenticated"], {"allow_unauthenticated": True}),
    (["--cors-origin", "https://a.org", "--cors-origin", "https://b.org"], {"cors_origins": ("https://a.org", "https://b.org")}),
    (["--allow-url-fetch"], {"allow_url_fetch": True}),
    (["--allowed-media-domain", "a.org"], {"allowed_media_domains": ("a.org",)}),
    (["--no-console"], {"console": False}),
    (["--no-model-control"], {"allow_model_control": False}),
    (["--no-debug-routes"], {"debug_routes": False}),
    (["--otlp-endpoint", "http://localhost:4318"], {"otlp_endpoint": "http://localhost:4318"}),
]  # fmt: skip
RUNTIME_FLAGS: list[tuple[list[str], dict[str, Any]]] = [
    (["a", "b.gguf"], {"selected": ("a", "b.gguf")}),
    (["--models", "m"], {"models": Path("m")}),
    (["--vision"], {"kinds": frozenset({"vision"})}),
    (["--llm"], {"kinds": frozenset({"llm"})}),
    (["--vision", "--llm"], {}),
    (["--memory", "1.5"], {"memory_bytes": 3 << 29}),
    (["--gpu-memory-utilization", "0.5"], {"gpu_memory_utilization": 0.5}),
    (["--max-model-len", "64", "--backend", "reference"], {"engine": {"max_model_len": 64, "backend": "reference"}}),
    (["--vision-backend", "ort"], {"backend": "ort"}),
    (["--device", "cuda"], {"device": "cuda"}),
    (["--vision-threads", "3"], {"threads": 3}),
    (["--max-queue-delay-ms", "4"], {"max_queue_delay": 0.004}),
    (["--embedding-cache-mib", "64"], {"embedding_cache_bytes": 64 << 20}),
    (["--max-itl-ms", "150"], {"max_itl": 0.15}),
    (["--vision-share", "0.25"], {"vision_share": 0.25}),
    (["--reload-interval", "5"], {"reload_interval": 5.0}),
    (["--traffic-profile", "t.json"], {"traffic_profile": Path("t.json")}),
    (["--no-traffic-profile"], {"traffic_profile": None}),
    (["--no-verify-on-load"], {"verify_on_load": False}),
    (["--max-queued-requests", "9"], {"max_queued_requests": 9}),
    (["--max-queued-pictures", "9"], {"max_queued_pictures": 9}),
]


@pytest.mark.parametrize(("words", "changed"), SERVER_FLAGS)
def test_a_flag_changes_its_setting_of_the_server_and_no_other(words: list[str], changed: dict[str, Any]) -> None:
    assert server_settings(parsed(*words)) == ServerSettings(**changed)


@pytest.mark.parametrize(("words", "changed"), RUNTIME_FLAGS)
def test_a_flag_changes_its_setting_of_the_runtime_and_no_other(words: list[str], changed: dict[str, Any]) -> None:
    assert runtime_settings(parsed(*words)) == RuntimeSettings(**PROFILE | changed)


@pytest.mark.parametrize("field", fields(Limits), ids=lambda field: field.name)
def test_every_limit_is_a_flag_with_its_default_in_the_help(field: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--{field.name.replace('_', '-')}"
    assert server_settings(parsed(flag, "7")).limits == Limits(**{field.name: 7})
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = " ".join(capsys.readouterr().out.split()).split(f"{flag} N ")[-1]
    assert f"(default: {field.default:,})" in told.partition(" --")[0]


def test_no_setting_lacks_a_flag() -> None:
    changed = {name for _, changes in (*SERVER_FLAGS, *RUNTIME_FLAGS) for name in changes}
    named = {field.name for kind in (ServerSettings, RuntimeSettings) for field in fields(kind)}
    assert named - changed == {"api_keys", "limits"}, "tested on their own"
    assert EngineOptions.__annotations__.keys() <= vars(parsed()).keys()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--vision", "--max-model-len", "5"], "--max-model-len is for language models"),
        (["--llm", "--device", "cuda"], "--device is for bundles"),
        (["--traffic-profile", "x", "--no-traffic-profile"], "exclude each other"),
        (["--memory", "0"], "--memory is a number of GiB above 0"),
        (["--memory", "nan"], "--memory is a number of GiB above 0"),
        (["--gpu-memory-utilization", "2"], "gpu_memory_utilization"),
        (["--max-itl-ms", "0"], "max_itl must be above 0"),
        (["--reload-interval", "1e300"], "reload_interval must be at most 31536000 seconds"),
        (["--max-queue-delay-ms", "inf"], "max_queue_delay must be 0 or more and at most 31536000 seconds, got inf"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        runtime_settings(parsed(*words))


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="max_body_bytes must be above 0"):
        server_settings(parsed("--max-body-bytes", "0"))
    with pytest.raises(UsageError, match="drain_timeout must be at most 31536000 seconds"):
        server_settings(parsed("--drain-timeout", "1e300"))


@pytest.mark.parametrize("port", ["-1", "65536", "http", "٣"])
def test_a_port_is_a_number_of_sixteen_bits(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(f"--port={port}")
    assert ended.value.code == 2
    assert "a port from 0 to 65535" in capsys.readouterr().err


def test_the_file_means_what_the_flags_mean(config: Any) -> None:
    words = config(
        "model: [a, b]\nmodels: /m\nmax_itl_ms: 150\nmax-model-len: 64\ncors-origin: [https://a.org, https://b.org]\n"
        "console: false\nno-verify-on-load: true\nallow-url-fetch: false\nheader-timeout: 2\n"
    )
    same = ["a", "b", "--models", "/m", "--max-itl-ms", "150", "--max-model-len", "64", "--no-console"]
    same += ["--cors-origin", "https://a.org", "--cors-origin", "https://b.org", "--no-verify-on-load"]
    same += ["--header-timeout", "2"]
    for settings in (server_settings, runtime_settings):
        assert settings(parsed(*words)) == settings(parsed(*same))


def test_what_is_typed_replaces_what_the_file_says(config: Any) -> None:
    words = config("port: 1\nmodel: [a]\nconsole: false\nhost: 10.0.0.1\ncors-origin: https://a.org\n")
    settings = server_settings(parsed(*words, "--port", "2", "--console", "--cors-origin", "https://b.org"))
    assert (settings.port, settings.console, settings.host) == (2, True, "10.0.0.1")
    assert settings.cors_origins == ("https://b.org",)
    assert runtime_settings(parsed(*words, "b")).selected == ("b",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1", "unknown key 'prot'. Did you mean 'port'?"),
        ("max-batched-tokens: 1", "Did you mean 'max-num-batched-tokens'?"),
        ("help: true", "unknown key 'help'"),
        ("config: other.yaml", "unknown key 'config'"),
        ("port: big", "argument --port: expected a port"),
        ("port: [1, 2]", "'port' has one value, got a list"),
        ("port: true", "'port' needs a text or a number, got True"),
        ("port:", "'port' needs a text or a number, got None"),
        ("models: {a: b}", "'models' needs a text or a number"),
        ("console: 1", "'console' is true or false, got 1"),
        ("port: 1\nport: 2", "the key 'port' is there twice"),
        ("- a", "must hold lines"),
        ("", "must hold lines"),
        ("port: [", "is not valid YAML"),
        ("port: !!python/object/apply:os.getcwd []", "is not valid YAML"),
        ("a: " + "[" * 5000, "is not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_clear_error(config: Any, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(*config(text))
    assert told in str(caught.value)
    assert "serve.yaml" in str(caught.value)


def test_no_file_is_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml"):
        parsed("--config", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("text", ["max_itl_ms: 3\nmax-itl-ms: 4\n", "port: 1\nport: 1\n"])
def test_a_key_that_is_there_twice_is_refused_however_it_is_spelled(
    config: Callable[[str], list[str]], text: str
) -> None:
    with pytest.raises(UsageError, match="there twice"):
        parsed(*config(text))


@pytest.mark.parametrize("value", ["2001-99-99", "9" * 5000])
def test_a_value_that_yaml_cannot_read_is_refused(config: Callable[[str], list[str]], value: str) -> None:
    with pytest.raises(UsageError, match="not valid YAML"):
        parsed(*config(f"port: {value}\n"))


def test_a_file_without_an_end_is_too_large() -> None:
    with pytest.raises(InputError, match="larger than"):
        parsed("--config", "/dev/zero")


def test_keys_may_come_out_of_a_pipe(tmp_path: Path) -> None:
    """As `--api-key <(pass show vtk)`."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with ThreadPoolExecutor() as pool:
        keys = pool.submit(read_keys, path)
        path.write_text("first\nsecond\n")
        assert keys.result() == ("first", "second")


def test_keys_are_lines_of_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("first\n\n  second  \r\n")
    path.chmod(0o600)
    assert read_keys(path) == ("first", "second")
    assert server_settings(parsed("--api-key", str(path))).api_keys == ("first", "second")
    assert caplog.text == ""


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_file_for_others_is_warned_of_and_not_quoted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    path = tmp_path / "keys"
    path.write_text("hush\n")
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        read_keys(path)
    assert "chmod 600" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "holds no key"),
        (" \n", "holds no key"),
        ("a b\n", "Key 1"),
        ("ok\nhüsh\n", "Key 2"),
        ("a\x7f\n", "Key 1"),
        ("a\u2028b\n", "Key 1"),
    ],
)
def test_a_key_file_that_opens_nothing_is_refused(tmp_path: Path, content: str, told: str) -> None:
    """An empty file must never mean that no key is needed."""
    path = tmp_path / "keys"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(InputError, match=told) as caught:
        read_keys(path)
    assert "hüsh" not in str(caught.value)


def run_serve(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vtk.cli.main", "serve", "--port", "0", *words]
    environment = os.environ | {"VTK_HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "There are no"),
        (["nonsense"], "There is no model 'nonsense'"),
        (["--host", "0.0.0.0"], "has no API key"),
        (["--host", "192.0.2.1", "--allow-unauthenticated"], "cannot be listened on"),
    ],
)
def test_what_cannot_be_served_ends_with_2(tmp_path: Path, words: list[str], told: str) -> None:
    done = run_serve(*words, folder=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
