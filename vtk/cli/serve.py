"""Serve bundles and language models: OpenAI's protocol, KServe's over HTTP and gRPC, and plain REST for pictures.

Without MODEL, everything in the model folder is served; --vision or --llm alone restricts it to that kind. Ctrl-C or
SIGTERM ends it: what runs is finished first, a second one cuts it off.
Exit code: 0 ended as told, 2 a model, the address or a flag cannot be used.
"""

from __future__ import annotations

import argparse
import logging
import stat
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtk.cli.llm_options import add_engine_arguments, engine_options, read_text
from vtk.cli.serve_config import ConfigParser, merge_config
from vtk.errors import InputError, UsageError
from vtk.requirements import require
from vtk.server.settings import Limits, ServerSettings

if TYPE_CHECKING:
    from vtk.runtime import Runtime
    from vtk.server.launch import Addresses
    from vtk.serving.model_table import ModelStatus
    from vtk.serving.settings import Kind, RuntimeSettings

HELP = "serve models over HTTP and gRPC"
MAX_KEY_FILE_BYTES = 1 << 20
GIB = 1 << 30
_log = logging.getLogger(__name__)
_VISION_FLAGS = (
    "device",
    "vision_backend",
    "vision_threads",
    "max_queue_delay_ms",
    "embedding_cache_mib",
    "max_queued_pictures",
)
_LIMITS = {
    "max_body_bytes": "of one request",
    "max_pixels": "of one picture",
    "max_pictures": "in one request",
    "max_prompt_chars": "of one prompt",
    "max_n": "outputs of one request",
    "max_logprobs": "alternatives for each token",
    "max_connections": "open at once; beyond them the answer is 503",
    "max_queued_requests": "that wait for a language model; beyond them the answer is 429",
    "max_queued_pictures": "that wait for a vision model; beyond them the answer is 429",
    "header_timeout": "seconds for the head of a request",
    "body_timeout": "seconds between two parts of a body",
    "write_timeout": "seconds in which a client must take something of its answer",
    "drain_timeout": "seconds for what runs when the server is told to end",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[MODEL…] and the options below, all of them None unless given: a default stands in the settings it belongs to."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model", metavar="MODEL", nargs="*", help="name in the model folder, or path of a bundle, GGUF file or folder"
    )
    parser.add_argument("--vision", action="store_true", default=None, help="serve bundles")
    parser.add_argument("--llm", action="store_true", default=None, help="serve language models")
    parser.add_argument(
        "--models", metavar="DIR", type=Path, help="the model folder (default: $VTK_HOME/models or ~/.vtk/models)"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML with these flags, without their dashes")
    _add_server_arguments(parser.add_argument_group("server"))
    _add_runtime_arguments(parser.add_argument_group("models and device"))
    add_engine_arguments(parser)
    group = parser.add_argument_group("limits")
    for field in fields(Limits):
        kind = type(field.default)
        group.add_argument(
            f"--{field.name.replace('_', '-')}", metavar="N", type=kind,
            help=f"{_LIMITS[field.name]} (default: {field.default:,})",
        )  # fmt: skip


def _add_server_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", metavar="NAME", help="where to listen (default: 127.0.0.1, this machine only)")
    group.add_argument("--port", metavar="N", type=_port, help="HTTP (default: 8000; 0 takes a free one)")
    group.add_argument("--grpc-port", metavar="N", type=_port, help="KServe's gRPC (default: none)")
    group.add_argument(
        "--api-key", metavar="FILE", type=Path, help="a key a line; clients send Authorization: Bearer KEY"
    )
    group.add_argument("--allow-unauthenticated", action="store_true", default=None, help="other hosts need no key")
    group.add_argument("--cors-origin", metavar="URL", action="append", help="a web page's origin (repeatable)")
    group.add_argument("--allow-url-fetch", action="store_true", default=None, help="fetch pictures from public URLs")
    group.add_argument("--allowed-media-domain", metavar="HOST", action="append", help="fetch from these (repeatable)")
    for name, what in (
        ("console", "the web page at /"),
        ("model-control", "loading and unloading over the network"),
        ("debug-routes", "/debug/…, which shows parts of prompts"),
    ):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=f"{what}: on")
    group.add_argument(
        "--ray", metavar="ADDRESS", nargs="?", const="local",
        help="serve replicas on a Ray cluster, by default on one of its own; 'auto' is the one on this machine",
    )  # fmt: skip
    group.add_argument("--replicas", metavar="N", type=int, help="with --ray (default: 2)")
    group.add_argument("--otlp-endpoint", metavar="URL", help="send OpenTelemetry traces there (default: none)")


def _add_runtime_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--memory", metavar="GIB", type=float, help="for all models (default: what is free)")
    group.add_argument("--gpu-memory-utilization", metavar="X", type=float, help="share of what is free (default: 0.9)")
    group.add_argument("--device", metavar="NAME", help="of bundles: auto (default), cpu, cuda, …")
    group.add_argument("--vision-backend", metavar="NAME", help="of bundles: auto (default), ort, tensorrt, …")
    group.add_argument("--vision-threads", metavar="N", type=int, help="of an engine (default: the library's choice)")
    group.add_argument("--max-queue-delay-ms", metavar="X", type=float, help="a picture waits for a batch (default: 2)")
    group.add_argument(
        "--embedding-cache-mib", metavar="N", type=int, help="of a promptable model, for pictures seen (default: 512)"
    )
    group.add_argument("--max-itl-ms", metavar="X", type=float, help="between two tokens, for pictures (default: 200)")
    group.add_argument("--vision-share", metavar="X", type=float, help="of the device, both waiting (default: 0.5)")
    group.add_argument("--reload-interval", metavar="S", type=float, help="look for new models (default: when told)")
    group.add_argument("--traffic-profile", metavar="FILE", type=Path, help="frequent prefixes, to warm up with")
    group.add_argument("--no-traffic-profile", action="store_true", default=None, help="keep none")
    group.add_argument(
        "--no-verify-on-load", action="store_true", default=None, help="trust bundles, check hashes only"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to end; returns the exit code."""
    require("fastapi", "uvicorn", "grpc", "prometheus_client", needed_for="vtk serve", extra="serve")
    parser = ConfigParser(prog=str(args.config), add_help=False)
    add_arguments(parser)
    merged = merge_config(args, parser)
    from vtk.runtime import Runtime
    from vtk.server.context import ServerContext
    from vtk.server.launch import serve
    from vtk.server.logs import configure_logs
    from vtk.server.metrics import Metrics

    configure_logs(sys.stderr)
    settings = server_settings(merged)
    if merged.ray is not None:
        return _run_on_ray(merged, settings)
    if merged.replicas is not None:
        raise UsageError("--replicas is for --ray: without it there is one process.")
    runtime = Runtime(runtime_settings(merged))
    serve(ServerContext(runtime, settings, Metrics()), lambda addresses: _print_ready(runtime, addresses))
    return 0


def _run_on_ray(args: argparse.Namespace, settings: ServerSettings) -> int:
    require("ray", needed_for="--ray", extra="ray")
    if args.grpc_port is not None or args.traffic_profile is not None:
        raise UsageError("--grpc-port and --traffic-profile belong to one process and do not go with --ray.")
    from vtk.server.ray_app import RaySettings, serve_on_ray

    where = RaySettings(args.ray, **_given(args, {"replicas": "replicas"}))
    serve_on_ray(runtime_settings(args), settings, where, _print_address)
    return 0


def server_settings(args: argparse.Namespace) -> ServerSettings:
    """The frozen settings of the server. UsageError for values out of range, InputError for the key file."""
    limits = _given(args, {field.name: field.name for field in fields(Limits)})
    names = {
        "host": "host",
        "port": "port",
        "grpc_port": "grpc_port",
        "allow_unauthenticated": "allow_unauthenticated",
        "allow_url_fetch": "allow_url_fetch",
        "allow_model_control": "model_control",
        "console": "console",
        "debug_routes": "debug_routes",
        "otlp_endpoint": "otlp_endpoint",
    }
    return ServerSettings(
        **_given(args, names),
        api_keys=() if args.api_key is None else read_keys(args.api_key),
        cors_origins=tuple(args.cors_origin or ()),
        allowed_media_domains=tuple(args.allowed_media_domain or ()),
        limits=Limits(**limits),
    )


def runtime_settings(args: argparse.Namespace) -> RuntimeSettings:
    """The frozen settings of the runtime. UsageError for values out of range."""
    from vtk.serving.settings import KINDS, RuntimeSettings, default_traffic_profile

    if args.no_traffic_profile and args.traffic_profile is not None:
        raise UsageError("--traffic-profile and --no-traffic-profile exclude each other.")
    names = {
        "models": "models",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "device": "device",
        "backend": "vision_backend",
        "threads": "vision_threads",
        "vision_share": "vision_share",
        "reload_interval": "reload_interval",
        "max_queued_requests": "max_queued_requests",
        "max_queued_pictures": "max_queued_pictures",
    }
    values = _given(args, names)
    for name, flag, unit in (("max_queue_delay", "max_queue_delay_ms", 1e-3), ("max_itl", "max_itl_ms", 1e-3)):
        if (value := getattr(args, flag)) is not None:
            values[name] = value * unit
    if args.embedding_cache_mib is not None:
        values["embedding_cache_bytes"] = args.embedding_cache_mib << 20
    if args.memory is not None:
        values["memory_bytes"] = _bytes(args.memory)
    kinds = frozenset(kind for kind in KINDS if getattr(args, kind)) or frozenset(KINDS)
    _refuse_idle_flags(args, kinds)
    return RuntimeSettings(
        **values,
        selected=tuple(args.model),
        kinds=kinds,
        # Asked for only where it is needed: bundles are served without the packages of language models.
        engine=engine_options(args) if any(getattr(args, name) is not None for name in _engine_names()) else {},
        traffic_profile=None if args.no_traffic_profile else args.traffic_profile or default_traffic_profile(),
        verify_on_load=not args.no_verify_on_load,
    )


def _refuse_idle_flags(args: argparse.Namespace, kinds: frozenset[Kind]) -> None:
    """Refuse an option that would have no effect."""
    flags: dict[Kind, Iterable[str]] = {"vision": _VISION_FLAGS, "llm": _engine_names()}
    for kind in flags.keys() - kinds:
        if idle := next((name for name in flags[kind] if getattr(args, name) is not None), None):
            what = {"vision": "bundles", "llm": "language models"}[kind]
            raise UsageError(f"--{idle.replace('_', '-')} is for {what}, which are not served without --{kind}.")


def _engine_names() -> Iterable[str]:
    parser = argparse.ArgumentParser(add_help=False)
    add_engine_arguments(parser)
    return vars(parser.parse_args([]))


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line. InputError for a file without keys or with one that no header can carry."""
    lines = read_text(path, MAX_KEY_FILE_BYTES).split("\n")  # splitlines would also split at what no key may hold
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InputError(f"The key file {path} holds no key.", hint="Put one on each line: openssl rand -hex 32.")
    for number, key in enumerate(keys, 1):
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(f"Key {number} of {path} has characters that are not visible ASCII.")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning("other users of this machine can use the key file %s: chmod 600", path)
    return keys


def _print_ready(runtime: Runtime, addresses: Addresses) -> None:
    for status in runtime.statuses():
        print(_line(status), flush=True)  # noqa: T201
    if addresses.grpc is not None:
        print(f"gRPC on {addresses.grpc}", flush=True)  # noqa: T201
    _print_address(addresses.http)


def _print_address(url: str) -> None:
    print(f"Serving on {url} (Ctrl-C ends it)", flush=True)  # noqa: T201


def _line(status: ModelStatus) -> str:
    name = f"{status.name} version {status.version}"
    if status.state != "ready":
        return f"{name}: {status.state}: {status.reason}"
    return f"{name}: {status.kind} ({status.task}), {status.backend} on {status.device}, {status.precision}"


def _given(args: argparse.Namespace, names: dict[str, str]) -> dict[str, Any]:
    """By field, what was given under the flag of that name; the field's own default holds for the rest."""
    return {field: value for field, flag in names.items() if (value := getattr(args, flag)) is not None}


def _bytes(gib: float) -> int:
    if not 0 < gib < 1 << 20:
        raise UsageError(f"--memory is a number of GiB above 0, got {gib}.")
    return int(gib * GIB)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:6]) > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)
