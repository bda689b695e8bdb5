"""URL fetch against a resolver and a server of the test (case V64 and what belongs to it); nothing goes out."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vtk.errors import ImageError
from vtk.server.fetch import ByteBudget, FetchRules, UrlFetcher, parse_url

PUBLIC, OTHER_PUBLIC = "93.184.216.34", "93.184.216.35"
PICTURE = b"\x89PNG\r\n\x1a\n and the rest"
BUDGET = 1000
TLS_HANDSHAKE = b"\x16"


def response(body: bytes = PICTURE, status: str = "200 OK", **headers: str) -> bytes:
    lines = {"Content-Length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return response(b"", status, Location=to)


@dataclass
class FakeInternet:
    """Names resolve as `names` says, one list per look-up; all connections reach one local server.

    The server answers a request for `HOST/PATH` with `pages[that]`, bytes or a function of the connection.
    """

    port: int
    names: dict[str, list[Sequence[str]]] = field(default_factory=dict)
    pages: dict[str, bytes | Callable[[socket.socket], None]] = field(default_factory=dict)
    connections: list[tuple[str, int]] = field(default_factory=list)
    requests: list[list[str]] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)
    tls: ssl.SSLContext | None = None
    server_names: list[str] = field(default_factory=list)

    def resolve(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        left = self.names[host]
        return left.pop(0) if len(left) > 1 else left[0]

    def connect(self, address: str, port: int, timeout: float) -> socket.socket:
        self.connections.append((address, port))
        if address in self.refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                if self.tls is None:
                    self._answer(connection)
                else:
                    with self.tls.wrap_socket(connection, server_side=True) as encrypted:
                        self._answer(encrypted)

    def _answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := connection.recv(4096)) or data.startswith(TLS_HANDSHAKE):
                return
            head += data
        lines = head.decode("ascii").split("\r\n")
        self.requests.append(lines)
        host = next(line.partition(": ")[2] for line in lines if line.startswith("Host: "))
        page = self.pages[host + lines[0].split()[1]]
        if isinstance(page, bytes):
            connection.sendall(page)
        else:
            page(connection)


@pytest.fixture
def internet() -> Iterator[FakeInternet]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fake = FakeInternet(listener.getsockname()[1])
        thread = threading.Thread(target=fake.serve, args=(listener,))
        thread.start()
        try:
            yield fake
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def fetcher(internet: FakeInternet, **rules: Any) -> UrlFetcher:
    return UrlFetcher(FetchRules(**rules), resolve=internet.resolve, connect=internet.connect)


def fetch(internet: FakeInternet, url: str, *, budget: int = BUDGET, **rules: Any) -> bytes:
    return fetcher(internet, **rules).fetch(url, ByteBudget(budget))


def refusal(internet: FakeInternet, url: str, **rules: Any) -> ImageError:
    with pytest.raises(ImageError) as caught:
        fetch(internet, url, **rules)
    return caught.value


def test_a_picture_is_fetched_from_the_address_that_was_checked(internet: FakeInternet) -> None:
    internet.names["pictures.example"] = [[PUBLIC]]
    internet.pages["pictures.example/a%20b/c.png?x=1&y=%C3%A4"] = response()
    assert fetch(internet, "http://Pictures.Example/a%20b/c.png?x=1&y=ä#part") == PICTURE
    assert internet.connections == [(PUBLIC, 80)]
    assert internet.lookups == ["pictures.example"]
    assert "Host: pictures.example" in internet.requests[0]
    assert not any(line.lower().startswith(("cookie", "authorization", "referer")) for line in internet.requests[0])


INSIDE = (
    "http://127.0.0.1/",
    "http://127.0.0.1:8000/v1/models",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.100.100.200/",
    "http://0.0.0.0/",
    "http://224.0.0.1/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[2002:7f00:1::]/",
    "http://[fe80::1]/",
    "http://[fd00:ec2::254]/",
    "https://127.0.0.1/",
)


@pytest.mark.parametrize("url", INSIDE)
def test_an_address_inside_is_refused(internet: FakeInternet, url: str) -> None:
    error = refusal(internet, url)
    assert error.reason == "refused"
    assert "public internet" in str(error)
    assert not internet.connections


ODD_ADDRESSES = (
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://127.0.0.1.1/",
    "http://127.0.0.0x1/",
    "http://1.1.1.01/",
    "http://[::1%25eth0]/",
    "http://[2606:4700::1%25eth0]/",
)


@pytest.mark.parametrize("url", ODD_ADDRESSES)
def test_an_odd_spelling_of_an_address_is_refused_and_never_resolved(internet: FakeInternet, url: str) -> None:
    error = refusal(internet, url)
    assert error.reason == "refused"
    assert "four decimal numbers" in str(error)
    assert not internet.lookups


@pytest.mark.parametrize("url", ["http://１２７。0.0.1/", "http://127.0.0.1./", "http://①②⑦.0.0.1/"])
def test_an_address_in_other_characters_is_still_that_address(internet: FakeInternet, url: str) -> None:
    assert "public internet" in str(refusal(internet, url))
    assert not internet.connections


NO_WEB = (
    "file:///etc/passwd",
    "gopher://example.com/_GET",
    "ftp://example.com/a.png",
    "//example.com/a.png",
    "jar:http://example.com!/",
    "http://",
    "http:///a.png",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://example.com:99999/",
    "http://example.com:x/",
    "http://[::1/",
    "http://exa mple.com/",
    "http://example.com/a\r\nHost: inside",
    "http://exam\tple.com/",
    "http://example.com\\@127.0.0.1/",
    "http://exam%70le.com/",
    "http://a..b/",
    "http://" + "a" * 64 + ".com/",
    "http://example.com/" + "a" * 9000,
)


@pytest.mark.parametrize("url", NO_WEB)
def test_what_is_no_plain_web_address_is_refused(internet: FakeInternet, url: str) -> None:
    internet.names = {"example.com": [[PUBLIC]]}
    assert refusal(internet, url).reason == "refused"
    assert not internet.connections
    assert not internet.lookups


@pytest.mark.parametrize("host", ["localhost", "localhost.", "inside.example", "metadata"])
@pytest.mark.parametrize(
    "addresses", [["10.0.0.1"], ["127.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1", PUBLIC], ["fe80::1%eth0"]]
)
def test_a_name_with_any_address_inside_is_refused(internet: FakeInternet, host: str, addresses: list[str]) -> None:
    internet.names[host.rstrip(".")] = [addresses]
    error = refusal(internet, f"http://{host}/a.png")
    assert error.reason == "refused"
    assert addresses[0] not in str(error)  # what a name means inside is nobody's business
    assert not internet.connections


def test_a_name_that_changes_its_mind_is_asked_once(internet: FakeInternet) -> None:
    """DNS rebinding: the second look-up would lead inside; there is none."""
    internet.names["rebinding.example"] = [[PUBLIC], ["127.0.0.1"]]
    internet.pages["rebinding.example/"] = response()
    assert fetch(internet, "http://rebinding.example/") == PICTURE
    assert internet.connections == [(PUBLIC, 80)]
    assert internet.lookups == ["rebinding.example"]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://inside.example/",
        "file:///etc/passwd",
        "//169.254.169.254/",
        "http://2130706433/",
        "http://[::1/",
    ],
)
def test_a_redirect_inside_is_refused(internet: FakeInternet, location: str) -> None:
    internet.names = {"pictures.example": [[PUBLIC]], "inside.example": [["10.0.0.1"]]}
    internet.pages["pictures.example/"] = redirect(location)
    assert refusal(internet, "http://pictures.example/").reason == "refused"
    assert internet.connections == [(PUBLIC, 80)]


def test_the_same_name_is_checked_again_after_a_redirect(internet: FakeInternet) -> None:
    internet.names["pictures.example"] = [[PUBLIC], ["127.0.0.1"]]
    internet.pages["pictures.example/"] = redirect("/inside")
    assert refusal(internet, "http://pictures.example/").reason == "refused"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_to_another_public_host_is_followed(internet: FakeInternet, status: str) -> None:
    internet.names = {"a.example": [[PUBLIC]], "b.example": [[OTHER_PUBLIC]]}
    internet.pages = {"a.example/x/y": redirect("//b.example:8080/z", status), "b.example:8080/z": response()}
    assert fetch(internet, "http://a.example/x/y") == PICTURE
    assert internet.connections == [(PUBLIC, 80), (OTHER_PUBLIC, 8080)]


def test_redirects_without_end_are_given_up(internet: FakeInternet) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    internet.pages["a.example/"] = redirect("/")
    error = refusal(internet, "http://a.example/", max_redirects=2)
    assert error.reason == "unreadable"
    assert "more than 2 times" in str(error)
    assert len(internet.connections) == 3


def test_only_the_allowed_domains_are_asked(internet: FakeInternet) -> None:
    internet.names = {name: [[PUBLIC]] for name in ("good.example", "sub.good.example", "evilgood.example")}
    internet.pages["good.example/"] = response()
    rules = {"domains": frozenset({"Good.example"})}
    assert fetch(internet, "http://GOOD.example./", **rules) == PICTURE
    for host in ("sub.good.example", "evilgood.example", "good.example.evil", PUBLIC):
        assert "allowed domains" in str(refusal(internet, f"http://{host}/", **rules))
    assert len(internet.connections) == 1


def test_an_allowed_domain_may_not_redirect_elsewhere_nor_be_inside(internet: FakeInternet) -> None:
    internet.names = {"good.example": [[PUBLIC]], "other.example": [[PUBLIC]], "wiki.internal": [["10.0.0.1"]]}
    internet.pages["good.example/"] = redirect("http://other.example/")
    rules = {"domains": frozenset({"good.example", "wiki.internal"})}
    assert "allowed domains" in str(refusal(internet, "http://good.example/", **rules))
    assert "public internet" in str(refusal(internet, "http://wiki.internal/", **rules))


@pytest.mark.parametrize("is_announced", [True, False])
def test_more_bytes_than_allowed_are_not_taken(internet: FakeInternet, is_announced: bool) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    body = b"x" * (BUDGET + 1)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    internet.pages["a.example/"] = response(body) if is_announced else chunked
    assert refusal(internet, "http://a.example/").reason == "too_large"
    assert fetch(internet, "http://a.example/", budget=BUDGET + 1) == body


def test_what_is_announced_as_too_large_is_refused_before_it_comes(internet: FakeInternet) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    gone = threading.Event()

    def announce(connection: socket.socket) -> None:
        connection.sendall(response(b"", Content_Length=str(BUDGET + 1)))
        connection.recv(1)  # returns when the client hangs up
        gone.set()

    internet.pages["a.example/"] = announce
    assert refusal(internet, "http://a.example/").reason == "too_large"
    assert gone.wait(30)


def test_the_budget_is_shared_by_the_pictures_of_a_request(internet: FakeInternet) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    internet.pages["a.example/"] = response(b"x" * 600)
    budget = ByteBudget(BUDGET)
    assert len(fetcher(internet).fetch("http://a.example/", budget)) == 600
    with pytest.raises(ImageError, match="1,000 bytes together") as caught:
        fetcher(internet).fetch("http://a.example/", budget)
    assert caught.value.reason == "too_large"


def drip_head(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while not stop.wait(0.02):
        connection.sendall(b"x")


def drip_body(connection: socket.socket, stop: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not stop.wait(0.02):
        connection.sendall(b"x")


def say_nothing(connection: socket.socket, stop: threading.Event) -> None:
    stop.wait()


@pytest.mark.parametrize("behave", [drip_head, drip_body, say_nothing])
def test_a_slow_host_is_cut_off(
    internet: FakeInternet, behave: Callable[[socket.socket, threading.Event], None]
) -> None:
    """A byte now and then resets no clock, and what came so far does not pass for the picture."""
    internet.names["slow.example"] = [[PUBLIC]]
    with ExitStack() as stack:
        stop = threading.Event()
        stack.callback(stop.set)
        internet.pages["slow.example/"] = lambda connection: behave(connection, stop)
        error = refusal(internet, "http://slow.example/", seconds=0.3)
    assert error.reason == "unreadable"
    assert "longer than 0.3 s" in str(error)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (response(status="404 Not Found"), "answered 404"),
        (response(status="206 Partial Content"), "answered 206"),
        (response(status="302 Found"), "answered 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "did not give the picture"),
        (b"", "did not give the picture"),
        (response(PICTURE, Content_Length="999"), "bytes are missing"),
        (response(PICTURE, Content_Encoding="gzip"), "compressed"),
    ],
)
def test_an_answer_that_is_no_picture_says_so(internet: FakeInternet, page: bytes, told: str) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    internet.pages["a.example/"] = page
    error = refusal(internet, "http://a.example/")
    assert error.reason == "unreadable"
    assert told in str(error)


def test_an_unknown_name_and_a_closed_port_are_told(internet: FakeInternet) -> None:
    assert "Name or service not known" in str(refusal(internet, "http://nowhere.example/"))
    internet.names["a.example"] = [[PUBLIC]]
    internet.refusing = {PUBLIC}
    assert "Connection refused" in str(refusal(internet, "http://a.example/"))


def test_the_next_checked_address_is_tried(internet: FakeInternet) -> None:
    internet.names["a.example"] = [["2606:4700::1", PUBLIC]]
    internet.refusing = {"2606:4700::1"}
    internet.pages["a.example/"] = response()
    assert fetch(internet, "http://a.example/") == PICTURE
    assert internet.connections == [("2606:4700::1", 80), (PUBLIC, 80)]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh key and a certificate for a.example that signs itself, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    file = folder / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=a.example"
    words = [*command.split(), "-addext", "subjectAltName=DNS:a.example", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    file.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return file


@pytest.fixture
def secure_internet(internet: FakeInternet, certificate: Path) -> FakeInternet:
    """Answers in TLS only, with the certificate of a.example, and notes the name that it is asked for."""
    internet.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    internet.tls.load_cert_chain(certificate)
    internet.tls.sni_callback = lambda connection, name, context: internet.server_names.append(name)
    for name in ("a.example", "b.example"):
        internet.names[name] = [[PUBLIC]]
        internet.pages[f"{name}/"] = response()
    return internet


def test_https_asks_for_the_name_at_the_pinned_address(secure_internet: FakeInternet, certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    pinned = UrlFetcher(FetchRules(), resolve=secure_internet.resolve, connect=secure_internet.connect, tls=trusting)
    assert pinned.fetch("https://a.example/", ByteBudget(BUDGET)) == PICTURE
    assert secure_internet.server_names == ["a.example"]
    assert secure_internet.connections == [(PUBLIC, 443)]
    with pytest.raises(ImageError, match=r"b\.example"):
        pinned.fetch("https://b.example/", ByteBudget(BUDGET))
    assert len(secure_internet.requests) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(secure_internet: FakeInternet) -> None:
    error = refusal(secure_internet, "https://a.example/")
    assert error.reason == "unreadable"
    assert "certificate" in str(error).lower()
    assert not secure_internet.requests


def test_https_to_a_server_without_tls_sends_it_no_request(internet: FakeInternet) -> None:
    internet.names["a.example"] = [[PUBLIC]]
    assert refusal(internet, "https://a.example/").reason == "unreadable"
    assert not internet.requests


def test_proxies_of_the_environment_are_not_used(internet: FakeInternet, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    internet.names["a.example"] = [[PUBLIC]]
    internet.pages["a.example/"] = response()
    assert fetch(internet, "http://a.example/") == PICTURE
    assert internet.connections == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://a.example/", "a.example"),
        ("http://a.example:80/", "a.example"),
        ("http://a.example:443/", "a.example:443"),
        ("https://a.example:443/", "a.example"),
        ("http://a.example:8080/", "a.example:8080"),
        ("http://[2606:4700::1]/", "[2606:4700::1]"),
        ("http://[2606:4700:0::1]:81/", "[2606:4700::1]:81"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
        ("http://a.example:0/", "a.example:0"),
    ],
)
def test_the_host_header_is_that_of_the_url(url: str, header: str) -> None:
    assert parse_url(url).host_header == header
