"""Pictures from URLs that clients name, without lending them the server's place in the network.

A host name is resolved once, every address it has must be public, and the connection goes to one of the checked
addresses: a name that resolves differently the next time leads nowhere else. Each redirect is a new URL and is checked
as one. Proxies that the environment names are not used.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias
from urllib.parse import quote, urljoin, urlsplit

from vtk.errors import ImageError
from vtk.server.public_address import is_public

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
Connect: TypeAlias = Callable[[str, int, float], socket.socket]

PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 8192
MAX_ADDRESSES = 4
_CHUNK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def resolve_host(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system resolves it."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def connect_to(address: str, port: int, timeout: float) -> socket.socket:
    """A TCP connection to a numeric address."""
    return socket.create_connection((address, port), timeout)


class ByteBudget:
    """How many bytes may still be taken, over all pictures of one request; may be used from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._left = limit
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Raises ImageError (too_large) when fewer than `count` bytes are left; they are not taken then."""
        with self._lock:
            if count > self._left:
                raise ImageError("too_large", f"The pictures of one request may have {self.limit:,} bytes together.")
            self._left -= count


@dataclass(frozen=True)
class FetchRules:
    """domains: the hosts that may be asked, exactly as URLs name them; empty for all with a public address.

    max_redirects: how many are followed. seconds: for one picture, from resolving the name to the last byte.
    """

    domains: frozenset[str] = frozenset()
    max_redirects: int = 3
    seconds: float = 10.0


@dataclass(frozen=True)
class Target:
    """One checked URL. host: lower case, ASCII, without brackets or a last dot. path: with the query, encoded."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: str) -> Target:
    """Raises ImageError (refused) for what is no plain http or https URL with a host."""
    # `urlsplit` drops line breaks silently, and browsers take a backslash for a slash.
    if len(url) > MAX_URL_CHARS or any(char <= " " or char in "\x7f\\" for char in url):
        raise _refused(f"it must have at most {MAX_URL_CHARS} characters, no space, control character or backslash")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _refused("it is malformed") from None
    if parts.scheme not in PORTS:
        raise _refused(f"only http and https are fetched, not {parts.scheme[:20]!r}")
    if "@" in parts.netloc:
        raise _refused("it holds a user name")
    path = quote(parts.path or "/", safe="/%:=&+!$,;'@()*~")
    query = f"?{quote(parts.query, safe='/?%:=&+!$,;@()*~')}" if parts.query else ""
    return Target(
        parts.scheme, _parse_host(parts.hostname or ""), PORTS[parts.scheme] if port is None else port, path + query
    )


class UrlFetcher:
    """Fetches pictures by `rules`; blocking, to be called in a thread. `resolve` and `connect` reach the network."""

    def __init__(
        self,
        rules: FetchRules,
        *,
        resolve: Resolve = resolve_host,
        connect: Connect = connect_to,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rules = rules
        self._domains = frozenset(_parse_host(domain.lower()) for domain in rules.domains)
        self._resolve = resolve
        self._connect = connect
        self._tls = tls or ssl.create_default_context()

    def fetch(self, url: str, budget: ByteBudget) -> bytes:
        """The body behind `url`, its bytes taken from `budget`.

        Raises ImageError: `refused` for a URL that is not allowed, `unreadable` where the host does not answer 200 in
        time, `too_large` when the budget is used up.
        """
        deadline = time.monotonic() + self.rules.seconds
        for _ in range(self.rules.max_redirects + 1):
            target = parse_url(url)
            try:
                answer = self._get(target, budget, deadline)
            except (OSError, http.client.HTTPException) as error:
                raise self._unreadable(target, error, deadline) from error
            if isinstance(answer, bytes):
                return answer
            url = _joined(url, answer)
        raise ImageError("unreadable", f"The URL redirects more than {self.rules.max_redirects} times.")

    def _get(self, target: Target, budget: ByteBudget, deadline: float) -> bytes | str:
        """The body, or where a redirect leads."""
        addresses = self._public_addresses(target)
        with self._open(target, addresses, deadline) as connection:
            connection.sendall(_request(target))
            with http.client.HTTPResponse(connection, method="GET") as response:
                response.begin()
                location = response.getheader("Location")
                if response.status in _REDIRECTS and location is not None:
                    return location
                if response.status != 200:
                    raise ImageError("unreadable", f"{target.host} answered {response.status} instead of a picture.")
                return _read_body(response, budget, deadline)

    def _public_addresses(self, target: Target) -> list[str]:
        """All addresses of the host. One that is not public refuses all: which one is used must not matter."""
        if self._domains and target.host not in self._domains:
            raise _refused(f"{target.host} is not among the allowed domains")
        literal = _literal(target.host)
        found = [literal] if literal is not None else [ip_address(a) for a in self._resolve(target.host, target.port)]
        if not found:
            raise OSError("the name has no address")
        if not all(map(is_public, found)):
            raise _refused(f"{target.host} is not on the public internet")
        return [str(address) for address in found[:MAX_ADDRESSES]]

    @contextmanager
    def _open(self, target: Target, addresses: Sequence[str], deadline: float) -> Iterator[socket.socket]:
        """A connection to the first address that takes one, cut off at the deadline whatever it is doing then."""
        with self._connect_first(target, addresses, deadline) as connection, _cut_off(connection, deadline):
            if target.scheme == "http":
                yield connection
                return
            with self._tls.wrap_socket(connection, server_hostname=target.host) as encrypted:
                yield encrypted

    def _connect_first(self, target: Target, addresses: Sequence[str], deadline: float) -> socket.socket:
        """Each address gets an equal share of the time that is left, so that a dead one does not use it up."""
        for position, address in enumerate(addresses[:-1]):
            with suppress(OSError):
                return self._connect(address, target.port, _left(deadline) / (len(addresses) - position))
        return self._connect(addresses[-1], target.port, _left(deadline))

    def _unreadable(self, target: Target, error: Exception, deadline: float) -> ImageError:
        if time.monotonic() >= deadline:
            return ImageError("unreadable", f"{target.host} took longer than {self.rules.seconds:g} s.")
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
        return ImageError("unreadable", f"{target.host} did not give the picture: {reason}.")


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise _refused("it redirects to a malformed one") from None


def _refused(reason: str) -> ImageError:
    return ImageError("refused", f"The URL is not fetched: {reason}.")


def _parse_host(text: str) -> str:
    """A numeric address in its plain form, or a name in ASCII. Odd spellings of addresses are refused."""
    if ":" in text:
        return str(_numeric(text))
    try:
        host = text.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError:
        host = ""
    if not _HOST_NAME.fullmatch(host):
        raise _refused("it has no valid host")
    # What C libraries read as an address (2130706433, 0x7f.1, 0177.0.0.1) must not pass as a name.
    return str(_numeric(host)) if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]) else host


def _numeric(text: str) -> IPv4Address | IPv6Address:
    address = None if "%" in text else _literal(text)
    if address is None:
        raise _refused("an address must be four decimal numbers, or IPv6 in brackets")
    return address


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


@contextmanager
def _cut_off(connection: socket.socket, deadline: float) -> Iterator[None]:
    """A socket's own timeout is for one packet, so a byte now and then would hold the thread forever."""
    connection.settimeout(_left(deadline))
    with connection.dup() as handle:
        timer = threading.Timer(_left(deadline), _shut, [handle])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _shut(handle: socket.socket) -> None:
    with suppress(OSError):
        handle.shutdown(socket.SHUT_RDWR)


def _request(target: Target) -> bytes:
    head = f"GET {target.path} HTTP/1.1\r\nHost: {target.host_header}\r\nUser-Agent: vtk\r\nAccept: image/*\r\n"
    return f"{head}Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode("ascii")


def _read_body(response: http.client.HTTPResponse, budget: ByteBudget, deadline: float) -> bytes:
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise http.client.HTTPException("it sent a compressed body, which was not asked for")
    announced = response.length
    if announced is not None:
        budget.take(announced)
    body = bytearray()
    while chunk := response.read(_CHUNK):
        if announced is None:
            budget.take(len(chunk))
        body += chunk
    _left(deadline)  # a connection that was cut off ends like a body without a length
    if response.length:
        raise http.client.HTTPException(f"{response.length} bytes are missing")
    return bytes(body)
