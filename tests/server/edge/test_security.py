"""Keys, names and origins: each test fails when its guard is taken out."""

import hashlib
import hmac
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from vtk.errors import AccessError, UsageError
from vtk.server.security import check_key, is_loopback
from vtk.server.settings import ServerSettings

Client = Callable[..., TestClient]
KEYS = ("first-key", "second-key")
BEARER = {"Authorization": "Bearer second-key"}


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer second-key", "Bearer  second-key "])
def test_every_key_opens(header: str) -> None:
    check_key(ServerSettings(api_keys=KEYS), header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer first",
        "Bearer first-keys",
        "Basic first-key",
        "first-key",
        "Bearer é\udc80",
    ],
)
def test_anything_else_does_not(header: str | None) -> None:
    with pytest.raises(AccessError):
        check_key(ServerSettings(api_keys=KEYS), header)


def test_without_keys_anyone_may(make_client: Client) -> None:
    check_key(ServerSettings(), None)
    assert make_client().get("/version").status_code == 200


def test_keys_are_compared_in_constant_time_as_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key, also after one that matches; never the keys themselves, whose lengths differ."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return hmac.compare_digest(given, known)

    monkeypatch.setattr("vtk.server.security.hmac", type("hmac", (), {"compare_digest": staticmethod(compare)}))
    check_key(ServerSettings(api_keys=KEYS), "Bearer first-key")
    given = hashlib.sha256(b"first-key").digest()
    assert compared == [(given, hashlib.sha256(key.encode()).digest()) for key in KEYS]


PROTECTED = ["/version", "/v1/models", "/metrics", "/openapi.json", "/v2/models/x/ready", "/v2", "/debug/prefix", "/no"]
OPEN = ["/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"]


@pytest.mark.parametrize("path", PROTECTED)
def test_everything_but_the_probes_needs_a_key(make_client: Client, path: str) -> None:
    client = make_client(api_keys=KEYS)
    refused = client.get(path)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert client.get(path, headers=BEARER).status_code != 401


@pytest.mark.parametrize("path", OPEN)
def test_probes_need_none_for_looking(make_client: Client, path: str) -> None:
    client = make_client(api_keys=KEYS)
    assert client.get(path).status_code == 200
    assert client.post(path).status_code == 401


@pytest.mark.parametrize("path", ["/health/../version", "/%2e%2e/version", "//version", "/console/../version"])
def test_no_spelling_of_a_path_gets_around_the_key(make_client: Client, path: str) -> None:
    answer = make_client(api_keys=KEYS).get(f"http://127.0.0.1:8000{path}")
    assert answer.status_code in (401, 404)
    assert "version" not in answer.json()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1", "[::1]", "LOCALHOST"])
def test_this_machine_has_these_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.com", "127.0.0.1.evil.com"])
def test_and_no_others(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost:1", "[::1]:8000", "[::1]", "Localhost"])
def test_a_local_server_answers_to_its_own_names(make_client: Client, host: str) -> None:
    assert make_client().get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.com", "evil.com:8000", "127.0.0.1.evil.com", "10.0.0.1:8000", "[::2]", ":8000"])
def test_a_name_made_to_resolve_to_this_machine_gets_nothing(make_client: Client, host: str) -> None:
    answer = make_client().get("/health", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def test_a_server_for_others_answers_to_any_name(make_client: Client) -> None:
    client = make_client(host="0.0.0.0", api_keys=KEYS)
    assert client.get("/version", headers=BEARER | {"Host": "models.example.org"}).status_code == 200


PAGE = "https://page.example.org"


@pytest.mark.parametrize("origin", [PAGE, "null", "http://127.0.0.1:9999", "http://localhost:8000", "file://"])
def test_pages_of_others_can_start_nothing(make_client: Client, origin: str) -> None:
    """A browser sends such a request without asking first when its content type is plain; not reading is not enough."""
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    answer = make_client().post("/v1/completions", content="{}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_its_own_page_and_named_ones_can(make_client: Client) -> None:
    body = {"model": "m", "prompt": "x"}
    own = make_client().post("/v1/completions", json=body, headers={"Origin": "http://127.0.0.1:8000"})
    named = make_client(cors_origins=(PAGE,)).post("/v1/completions", json=body, headers={"Origin": PAGE})
    assert (own.status_code, named.status_code) == (404, 404), "reached the route, which has no such model"
    assert named.headers["access-control-allow-origin"] == PAGE


def test_cors_is_off_unless_an_origin_is_named(make_client: Client) -> None:
    preflight = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    off = make_client().options("/v1/completions", headers=preflight)
    assert not any(name.startswith("access-control") for name in off.headers)
    on = make_client(cors_origins=(PAGE,), api_keys=KEYS)
    assert on.options("/v1/completions", headers=preflight).headers["access-control-allow-origin"] == PAGE
    other = on.options("/v1/completions", headers=preflight | {"Origin": "https://evil.com"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "//", "", "é"])
def test_an_origin_that_is_no_url_is_refused_like_any_other(make_client: Client, origin: str) -> None:
    answer = make_client().post("/v1/completions", json={}, headers={"Origin": origin.encode()})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("origin", ["*", "https://*", "a.org", "https://a.org/", "ftp://a.org", "null", "https://["])
def test_an_origin_that_names_no_page_is_refused(origin: str) -> None:
    with pytest.raises(UsageError, match="CORS origin"):
        ServerSettings(cors_origins=(origin,))
