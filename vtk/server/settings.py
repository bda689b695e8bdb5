"""Everything that decides how the server behaves towards its clients: one frozen value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vtk.errors import UsageError
from vtk.serving.settings import MAX_SECONDS

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one client, or all of them together, may ask for.

    Sizes in bytes, times in seconds. max_prompt_chars bounds a prompt before it is tokenized. max_queued_requests and
    max_queued_pictures count what waits, over all clients; beyond them the answer is 429. header_timeout: until the
    last byte of the request head; body_timeout: between two parts of a body; write_timeout: a client that takes nothing
    for that long is cut off. drain_timeout: how long SIGTERM waits for what is running.
    """

    max_body_bytes: int = 64 * MIB
    max_pixels: int = 50_000_000
    max_pictures: int = 64
    max_prompt_chars: int = 1_000_000
    max_n: int = 16
    max_logprobs: int = 20
    max_connections: int = 1024
    max_queued_requests: int = 256
    max_queued_pictures: int = 512
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    drain_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise UsageError(f"{name} must be above 0 and finite, got {value}.")
            if name.endswith("_timeout") and value > MAX_SECONDS:
                raise UsageError(f"{name} must be at most {MAX_SECONDS} seconds, got {value}.")


@dataclass(frozen=True)
class ServerSettings:
    """The server's own choices; what the models do is RuntimeSettings'.

    host: a name or address to listen on; one that other machines reach needs api_keys or allow_unauthenticated.
    port 0 takes a free one. grpc_port None: no gRPC. api_keys: any of them opens every route but `/health` and the
    probes; empty: no keys. allowed_media_domains: hosts that pictures may be fetched from; empty with allow_url_fetch
    means any public address. allow_model_control: models may be loaded and unloaded over the network.
    cors_origins: exact origins of web pages that may call the server; none by default. debug_routes: `/debug/…`, which
    shows parts of prompts to whoever has a key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    api_keys: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    allow_url_fetch: bool = False
    allowed_media_domains: tuple[str, ...] = ()
    allow_model_control: bool = True
    cors_origins: tuple[str, ...] = ()
    console: bool = True
    debug_routes: bool = True
    otlp_endpoint: str | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for origin in self.cors_origins:
            if not _is_origin(origin):
                raise UsageError(
                    f"A CORS origin is scheme://host[:port] of one web page, got '{origin}'.",
                    hint="Name each page that may call the server; there is no '*'.",
                )


def _is_origin(text: str) -> bool:
    try:
        parts = urlsplit(text)
        valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return (
        valid
        and bool(parts.netloc)
        and parts.scheme in ("http", "https")
        and "*" not in text
        and text == f"{parts.scheme}://{parts.netloc}"
    )
