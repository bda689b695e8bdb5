"""HTTP/1.1 by hand, so that a client can read slowly, or leave in the middle of anything."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import dataclass
from typing import Any

SMALL_BUFFER = 4096  # bytes that the kernel takes for a reader who does not


@dataclass(frozen=True)
class Reply:
    """A whole answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection. Raises OSError or EOFError when the server closes it before the answer is whole."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, slow: bool = False) -> Wire:
        """slow: with a small receive buffer, so that the server feels that nobody reads."""
        connection = socket.socket()
        if slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=connection, limit=SMALL_BUFFER if slow else 1 << 20))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read(self, *, pause: float = 0.0) -> Reply:
        """The answer; `pause`: seconds to wait before each of its pieces."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        return Reply(int(lines[0].split()[1]), headers, await self._body(headers, pause))

    async def read_some(self, size: int) -> None:
        """What there is, up to `size` bytes of it."""
        while size > 0 and (data := await self._reader.read(size)):
            size -= len(data)

    async def _body(self, headers: dict[str, str], pause: float) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", 0)))
        body = bytearray()
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            if pause:
                await asyncio.sleep(pause)
            body += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
        return bytes(body)

    def leave(self) -> None:
        """Close without a word; what was not sent is not sent."""
        self.writer.transport.abort()


def request_bytes(method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A request as it is on the wire."""
    named = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
