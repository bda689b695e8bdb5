import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import vtk.server.console
from vtk.server.app import create_app
from vtk.server.console.pages import MEDIA_TYPES, read_pages
from vtk.server.context import ServerContext
from vtk.server.settings import ServerSettings

STATIC = Path(vtk.server.console.__file__).parent / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
BASE_URL = "http://127.0.0.1:8000"


def client_with(context: ServerContext, settings: ServerSettings) -> TestClient:
    return TestClient(create_app(replace(context, settings=settings)), base_url=BASE_URL)


@pytest.fixture
def locked(context: ServerContext) -> Iterator[TestClient]:
    with client_with(context, ServerSettings(api_keys=("secret",))) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/console"])
def test_the_short_addresses_lead_to_the_page(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.url.path == "/console/"
    assert "<title>vtk console</title>" in response.text


@pytest.mark.parametrize("name", ["", *NAMES])
def test_every_file_comes_with_its_type_and_a_policy_that_lets_nothing_else_in(client: TestClient, name: str) -> None:
    response = client.get(f"/console/{name}")
    assert response.status_code == 200
    assert response.content == (STATIC / (name or "index.html")).read_bytes()
    assert response.headers["content-type"] == MEDIA_TYPES[(name or "index.html").rpartition(".")[2]]
    assert response.headers["x-content-type-options"] == "nosniff"
    policy = response.headers["content-security-policy"]
    assert "default-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert "http" not in policy


def test_a_browser_that_has_a_file_is_told_so(client: TestClient) -> None:
    first = client.get("/console/chat.js")
    known = {"if-none-match": first.headers["etag"]}
    again = client.get("/console/chat.js", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/console/vision.js", headers=known).status_code == 200


@pytest.mark.parametrize(
    "path", ["nothing.js", "..%2froutes.py", "%2e%2e/routes.py", "static/chat.js", "%00", "index.html%00.js", "C:"]
)
def test_other_names_are_not_found(client: TestClient, path: str) -> None:
    response = client.get(f"/console/{path}")
    assert response.status_code == 404
    assert "def router" not in response.text


def test_the_page_is_open_and_its_route_is_not(locked: TestClient) -> None:
    for path in ("/", "/console", "/console/", "/console/console.js"):
        assert locked.get(path).status_code == 200
    assert locked.post("/console/api/pca", json={"images": ["x"]}).status_code == 401
    allowed = locked.post("/console/api/pca", json={"images": ["x"]}, headers={"authorization": "Bearer secret"})
    assert allowed.status_code == 400


def test_without_the_console_there_is_nothing(context: ServerContext) -> None:
    with client_with(context, ServerSettings(console=False)) as client:
        for path in ("/", "/console", "/console/", "/console/chat.js"):
            assert client.get(path).status_code == 404
        assert client.post("/console/api/pca", json={}).status_code == 404


def test_the_files_are_part_of_the_package() -> None:
    assert set(read_pages()) == set(NAMES) >= {"index.html", "console.js", "console.css", "icon.svg"}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_comes_from_elsewhere_and_nothing_is_markup(name: str) -> None:
    text = (STATIC / name).read_text()
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}", text))
    assert addresses <= {"http://www.w3.org"}  # the name of SVG, which nobody asks for
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"):
        assert word not in text


def test_the_page_has_no_inline_code_and_names_only_its_own_files() -> None:
    html = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style", html)
    assert re.findall(r"<script[^>]*>(.*?)</script>", html, re.S) == [""]
    assert set(re.findall(r'(?:src|href)="([^"]+)"', html)) <= set(NAMES)
    for path in STATIC.glob("*.js"):
        imported = re.findall(r'from "\./([^"]+)"', path.read_text())
        assert set(imported) <= set(NAMES), path.name


def test_every_field_has_a_label() -> None:
    html = (STATIC / "index.html").read_text()
    fields = re.findall(r'<(?:input|select|textarea) id="([^"]+)"', html)
    assert len(fields) == len(re.findall(r"<(?:input|select|textarea)\b", html))
    assert set(fields) <= set(re.findall(r'<label for="([^"]+)"', html))
