"""From what a request says of a picture (base64, a data URL, a URL) to the bytes of its file."""

from __future__ import annotations

import base64
import binascii
import re
import time
from functools import partial
from typing import TypeAlias

import anyio
from anyio import to_thread

from vtk.errors import DeadlineError, ImageError
from vtk.server.fetch import ByteBudget, FetchRules, UrlFetcher
from vtk.server.settings import ServerSettings

PictureSource: TypeAlias = "bytes | str"

MAX_FETCHES = 8  # over all requests: each holds a thread
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SPACE = dict.fromkeys(map(ord, " \t\r\n"))


class PictureReader:
    """Reads pictures by the server's settings. One for all requests; belongs to one event loop."""

    def __init__(self, settings: ServerSettings, fetcher: UrlFetcher | None = None) -> None:
        """`fetcher` replaces the one that reaches the network; it is used only where URL fetch is allowed."""
        self._max_bytes = settings.limits.max_body_bytes
        self._fetcher: UrlFetcher | None = None
        if settings.allow_url_fetch:
            self._fetcher = fetcher or UrlFetcher(FetchRules(frozenset(settings.allowed_media_domains)))
        self._slots = anyio.CapacityLimiter(MAX_FETCHES)

    def budget(self) -> ByteBudget:
        """For one request: what it may have fetched is as much as it may send."""
        return ByteBudget(self._max_bytes)

    async def read(self, source: PictureSource, budget: ByteBudget, *, deadline: float | None = None) -> bytes:
        """The encoded file behind `source`: bytes are returned as they are, text is base64, a data URL or a URL.

        deadline: on `time.monotonic()`. Raises ImageError (`refused` for a URL that may not be fetched, `unreadable`
        for damaged base64 and hosts that do not answer, `too_large`) and DeadlineError.
        """
        if isinstance(source, bytes):
            return source
        scheme = _SCHEME.match(source)
        if scheme is None:
            return await to_thread.run_sync(decode_base64, source)
        if scheme[1].lower() == "data":
            return await to_thread.run_sync(decode_data_url, source)
        return await self._fetch(source, budget, deadline)

    async def _fetch(self, url: str, budget: ByteBudget, deadline: float | None) -> bytes:
        if self._fetcher is None:
            raise ImageError(
                "refused",
                "This server fetches no URLs.",
                hint="Send the picture itself, as a form file, base64 or data URL; or start with --allow-url-fetch.",
            )
        seconds = self._fetcher.rules.seconds
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
        get = partial(self._fetcher.fetch, url, budget)
        try:
            # The fetcher bounds itself except for the resolver of the system, which cannot be interrupted.
            with anyio.fail_after(max(0.0, seconds)):
                return await to_thread.run_sync(get, limiter=self._slots, abandon_on_cancel=True)
        except TimeoutError:
            if seconds < self._fetcher.rules.seconds:
                raise DeadlineError("The picture was not fetched before the request's deadline.") from None
            raise ImageError("unreadable", f"The URL took longer than {seconds:g} s.") from None


def decode_base64(text: str) -> bytes:
    """Standard base64 with its padding; line breaks and spaces are skipped. Raises ImageError (unreadable)."""
    try:
        return base64.b64decode(text.translate(_SPACE).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        reason = "it holds characters outside ASCII" if isinstance(error, UnicodeEncodeError) else str(error).lower()
        raise ImageError(
            "unreadable",
            f"The picture is not valid base64: {reason}.",
            hint="Send standard base64 with padding, or data:image/png;base64,…",
        ) from None


def decode_data_url(url: str) -> bytes:
    """The bytes of `data:[type][;parameters];base64,…`; the type is not believed. Raises ImageError (unreadable)."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise ImageError("unreadable", "A data URL must have the form data:image/png;base64,…")
    return decode_base64(data)
