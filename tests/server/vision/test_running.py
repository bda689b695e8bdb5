"""While pictures are on their way: deadlines, priorities, clients that leave, URLs, and the API's description."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from jsonschema_rs import Draft202012Validator

from vtk.errors import ImageError
from vtk.server.fetch import ByteBudget, FetchRules, UrlFetcher
from vtk.server.pictures import PictureReader
from vtk.server.settings import ServerSettings

Encode = Callable[..., bytes]
Serve = Callable[..., Any]
MakeModel = Callable[..., Any]

WAIT = 30.0


class Gate:
    """An engine hook that holds every batch until it is opened, and notes what ran."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, images: npt.NDArray[np.float32]) -> None:
        self.batches.append([round(float(image[0].mean()) * 255) for image in images if image.any()])
        self.entered.set()
        assert self.open.wait(WAIT)


def body_of(*pictures: bytes, **options: Any) -> bytes:
    return json.dumps({"images": [base64.b64encode(picture).decode() for picture in pictures], **options}).encode()


async def ask(app: Any, task: str, body: bytes, leave: asyncio.Event | None = None) -> tuple[int, dict[str, Any]]:
    """One request in this event loop. The client leaves when `leave` is set; status 0 means that it got no answer."""
    messages: list[dict[str, Any]] = []
    is_sent = False

    async def receive() -> dict[str, Any]:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": f"/v1/vision/{task}", "raw_path": b"", "query_string": b"", "root_path": "", "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2), "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    await app(scope, receive, send)
    if not messages:
        return 0, {}
    content = b"".join(message.get("body", b"") for message in messages)
    return messages[0]["status"], json.loads(content)


async def until(condition: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), WAIT)


def test_a_client_that_leaves_frees_its_pictures(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    """What is in the engine runs to its end; what waits is dropped, and the model is given back."""
    gate = Gate()
    model = make_model("detr", "toy", hook=gate)
    served = serve(model)

    async def scene() -> int:
        leave = asyncio.Event()
        first = asyncio.create_task(ask(served.app, "detect", body_of(encode((9, 0, 0)))))
        await until(gate.entered.is_set)
        many = body_of(*[encode((value, 0, 0)) for value in range(20, 50)])
        second = asyncio.create_task(ask(served.app, "detect", many, leave))
        await until(lambda: model.stats.num_queued >= 5)
        leave.set()
        status, _ = await asyncio.wait_for(second, WAIT)
        assert served.runtime.leases == 1
        gate.open.set()
        assert (await first)[0] == 200
        await until(lambda: model.stats.num_queued == 0)  # the engine's thread looks at its queue after the answer
        return status

    assert asyncio.run(scene()) == 0
    assert served.runtime.leases == 0
    assert gate.batches == [[9]]


def test_a_deadline_that_passes_is_408(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    gate = Gate()
    served = serve(make_model("detr", "toy", hook=gate))

    async def scene() -> tuple[int, dict[str, Any]]:
        first = asyncio.create_task(ask(served.app, "detect", body_of(encode((9, 0, 0)))))
        await until(gate.entered.is_set)
        late = asyncio.create_task(ask(served.app, "detect", body_of(encode((8, 0, 0)), timeout_ms=1)))
        await asyncio.sleep(0.01)
        gate.open.set()
        assert (await first)[0] == 200
        return await asyncio.wait_for(late, WAIT)

    status, body = asyncio.run(scene())
    assert status == 408
    assert body["results"][0]["error"]["code"] == "deadline_exceeded"
    assert gate.batches == [[9]]


def test_lower_priorities_go_first(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    gate = Gate()
    model = make_model("detr", "toy", hook=gate)
    served = serve(model)

    async def scene() -> None:
        asks = [asyncio.create_task(ask(served.app, "detect", body_of(encode((9, 0, 0)))))]
        await until(gate.entered.is_set)
        for count, (value, priority) in enumerate([(30, 5), (31, 5), (32, 5), (33, 5), (20, -1)], 1):
            body = body_of(encode((value, 0, 0)), priority=priority)
            asks.append(asyncio.create_task(ask(served.app, "detect", body)))
            await until(lambda count=count: model.stats.num_queued >= count)  # type: ignore[misc]
        gate.open.set()
        assert [status for status, _ in await asyncio.gather(*asks)] == [200] * 6

    asyncio.run(scene())
    order = [value for batch in gate.batches for value in batch]
    assert order[:2] == [9, 20]


class Fetched(UrlFetcher):
    """Answers from `pages` and notes the URLs."""

    def __init__(self, pages: dict[str, bytes], hold: threading.Event | None = None, seconds: float = 10.0) -> None:
        super().__init__(FetchRules(seconds=seconds))
        self.pages = pages
        self.hold = hold
        self.urls: list[str] = []

    def fetch(self, url: str, budget: ByteBudget) -> bytes:
        self.urls.append(url)
        if self.hold is not None:
            assert self.hold.wait(WAIT)
        if url not in self.pages:
            raise ImageError("unreadable", "a.example answered 404 instead of a picture.")
        budget.take(len(self.pages[url]))
        return self.pages[url]


ALLOWED = ServerSettings(allow_url_fetch=True)


def test_pictures_are_fetched_when_that_is_allowed(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    good, bad = "http://a.example/good.png", "http://a.example/bad.png"
    reader = PictureReader(ALLOWED, Fetched({good: encode()}))
    served = serve(make_model("detr", "toy"), settings=ALLOWED, reader=reader)
    answer = served.post("detect", {"images": [good, {"url": bad}, {"url": good}]})
    assert answer.status_code == 200
    first, second, third = answer.json()["results"]
    assert first["detections"] == third["detections"] != []
    assert second["error"]["reason"] == "unreadable"


def test_a_fetcher_is_not_asked_when_fetching_is_off(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    fetcher = Fetched({"http://a.example/": encode()})
    served = serve(make_model("detr", "toy"), reader=PictureReader(ServerSettings(), fetcher))
    answer = served.post("detect", {"images": ["http://a.example/"]})
    assert answer.json()["results"][0]["error"]["reason"] == "refused"
    assert not fetcher.urls


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "gopher://a.example/", "http://127.0.0.1/", "HTTP://localhost./"]
)
def test_the_routes_reach_the_checks(
    serve: Serve, make_model: MakeModel, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fetcher that the server makes itself; only its resolver is replaced."""
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **rest: [(2, 1, 6, "", ("127.0.0.1", 80))])
    served = serve(make_model("detr", "toy"), settings=ALLOWED)
    answer = served.post("detect", {"images": [url]})
    assert answer.status_code == 400
    assert answer.json()["results"][0]["error"]["reason"] == "refused"


def test_only_the_allowed_domains_are_fetched_from(serve: Serve, make_model: MakeModel) -> None:
    settings = ServerSettings(allow_url_fetch=True, allowed_media_domains=("a.example",))
    answer = serve(make_model("detr", "toy"), settings=settings).post("detect", {"images": ["http://b.example/"]})
    assert "allowed domains" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "status", "text"), [({}, 400, "longer than 0.05 s"), ({"timeout_ms": 20}, 408, "deadline")]
)
def test_a_resolver_that_hangs_holds_no_request(
    serve: Serve, make_model: MakeModel, options: dict[str, Any], status: int, text: str
) -> None:
    hold = threading.Event()
    seconds = 0.05 if not options else 10.0
    reader = PictureReader(ALLOWED, Fetched({}, hold, seconds))
    served = serve(make_model("detr", "toy"), settings=ALLOWED, reader=reader)
    try:
        answer = served.post("detect", {"images": ["http://a.example/"], **options})
    finally:
        hold.set()
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]


def test_answers_are_as_the_api_describes_them(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("detr", "toy"), make_model("embed", "dino"), make_model("classify", "net"))
    described = served.client.get("/openapi.json").json()
    text = base64.b64encode(encode()).decode()
    for task in ("detect", "embed", "classify", "segment"):
        for images in ([text, "*"], ["*"], []):
            answer = served.post(task, {"images": images})
            responses = described["paths"][f"/v1/vision/{task}"]["post"]["responses"]
            schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
            Draft202012Validator({**schema, "components": described["components"]}).validate(answer.json())


def test_requests_are_described_as_they_are_checked(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    described = serve(make_model("detr", "toy")).client.get("/openapi.json").json()
    assert set(described["paths"]) == {f"/v1/vision/{task}" for task in ("detect", "segment", "embed", "classify")}
    for task in ("detect", "segment", "embed", "classify"):
        content = described["paths"][f"/v1/vision/{task}"]["post"]["requestBody"]["content"]
        assert content.keys() == {"application/json", "multipart/form-data"}
        assert "$ref" not in json.dumps(content)
        checker = Draft202012Validator(content["application/json"]["schema"])
        assert checker.is_valid({"images": ["abc", {"url": "data:,"}], "priority": 3})
        for wrong in ({}, {"images": []}, {"images": ["a"], "unknown": 1}, {"images": ["a"], "timeout_ms": 0}):
            assert not checker.is_valid(wrong)
