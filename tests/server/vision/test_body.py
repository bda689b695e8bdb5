"""Requests as they come over the wire: forms in any pieces, limits, and bodies that are neither form nor JSON."""

from __future__ import annotations

import base64
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vtk.errors import UsageError
from vtk.server.vision.form import MAX_FIELD_BYTES, MAX_FIELDS, FormReader
from vtk.server.vision.options import SegmentOptions

Encode = Callable[..., bytes]
Serve = Callable[..., Any]
MakeModel = Callable[..., Any]

TYPE = "multipart/form-data; boundary=frontier"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--frontier\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--frontier--\r\n"


def read(pieces: Sequence[bytes], max_pictures: int = 8) -> Any:
    reader = FormReader(TYPE, max_pictures=max_pictures)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


tricky = st.binary(max_size=80) | st.sampled_from(
    [b"\r\n--frontie", b"\r\n--frontier_", b"--frontier", b"\r\n", b"\r", b"-", b"\r\n--front\r\n--frontie"]
)


@given(pictures=st.lists(tricky, max_size=4), fields=st.lists(st.text(max_size=20), max_size=3), data=st.data())
def test_a_form_is_the_same_in_whatever_pieces_it_comes(
    pictures: list[bytes], fields: list[str], data: st.DataObject
) -> None:
    names = data.draw(st.permutations(["image"] * len(pictures) + ["classes"] * len(fields)))
    left = {"image": list(pictures), "classes": [field.encode() for field in fields]}
    body = form(*(part(name, left[name].pop(0)) for name in names))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    found = read(pieces)
    assert found.pictures == pictures
    assert found.fields == ({"classes": fields} if fields else {})
    assert read([bytes([byte]) for byte in body]).pictures == pictures


@pytest.mark.parametrize("name", ["image", "images", "image[]", "images[]"])
def test_pictures_come_under_the_names_that_clients_use(name: str) -> None:
    assert read([form(part(name, b"1", '; filename="../../x"'), part(name, b"2"))]).pictures == [b"1", b"2"]


def test_the_picture_after_the_last_allowed_ends_the_reading() -> None:
    """Its content is never taken."""
    reader = FormReader(TYPE, max_pictures=2)
    reader.feed(part("images", b"1") + part("images", b"2"))
    with pytest.raises(UsageError, match="more than 2 pictures"):
        reader.feed(part("images", b"")[:-2])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "closing boundary"),
        (part("images", b"1"), "closing boundary"),
        (form(part("images", b"1"))[:-4], "closing boundary"),
        (b"no form at all", "not a whole multipart"),
        (b"--another\r\n", "not a whole multipart"),
        (form(part("images", b"1").replace(b": form", b" form")), "not a whole multipart"),
        (form(b"--frontier\r\n\r\nx\r\n"), "no name"),
        (form(b'--frontier\r\nContent-Type: image/png; name="images"\r\n\r\nx\r\n'), "no name"),
        (form(part("", b"1")), "no name"),
        (form(part("model", b"\xff")), "not UTF-8"),
        (form(part("model", b"x" * (MAX_FIELD_BYTES + 1))), "larger than 65,536 bytes"),
        (form(part("images", b"1", "".join(f"\r\nX-{i}: " + "y" * 3000 for i in range(3)))), "head of a form part"),
        (form(*[part("classes", b"1")] * (MAX_FIELDS + 1)), "more than 1,024 fields"),
    ],
)
def test_a_damaged_or_oversized_form_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read([body])


@pytest.mark.parametrize("parameters", ["", "; boundary=", '; boundary=""'])
def test_a_form_needs_a_boundary(parameters: str) -> None:
    with pytest.raises(UsageError, match="boundary"):
        FormReader(f"multipart/form-data{parameters}", max_pictures=1)


def test_a_boundary_without_end_is_refused() -> None:
    with pytest.raises(UsageError):
        FormReader("multipart/form-data; boundary=" + "x" * 100_000, max_pictures=1).feed(b"--x")


def test_nothing_is_spooled_to_the_disk(
    serve: Serve, make_model: MakeModel, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a temporary file was opened")

    served = serve(make_model("detr", "toy"))
    for name in ("SpooledTemporaryFile", "TemporaryFile", "NamedTemporaryFile", "mkstemp"):
        monkeypatch.setattr(tempfile, name, refuse)
    picture = encode(size_wh=(1200, 1100), format="BMP")
    assert len(picture) > 3 << 20
    assert served.post_files("detect", [picture]).status_code == 200


def told(answer: Any, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_more_pictures_than_allowed_are_refused(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("detr", "toy"), max_pictures=2)
    text = base64.b64encode(encode()).decode()
    assert served.post("detect", {"images": [text] * 2}).status_code == 200
    assert "at most 2" in told(served.post("detect", {"images": [text] * 3}))
    assert served.post_files("detect", [encode()] * 2).status_code == 200
    assert "more than 2" in told(served.post_files("detect", [encode()] * 3))


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_413(serve: Serve, make_model: MakeModel, encode: Encode, is_chunked: bool) -> None:
    served = serve(make_model("detr", "toy"), max_body_bytes=5000)
    for body, kind in (
        (form(part("images", b"x" * 6000)), TYPE),
        (json.dumps({"images": ["A" * 6000]}).encode(), "application/json"),
    ):
        content: Any = iter([body[:3000], body[3000:]]) if is_chunked else body
        answer = served.client.post("/v1/vision/detect", content=content, headers={"Content-Type": kind})
        told(answer, 413)
    assert served.post_files("detect", [encode()]).status_code == 200


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("image/png", b"\x89PNG", "must be multipart/form-data or application/json, its Content-Type is 'image/png'"),
        ("", b"{}", "Content-Type is ''"),
        ("application/x-www-form-urlencoded", b"images=x", "application/x-www-form-urlencoded"),
        ("application/json", b"", "JSON"),
        ("application/json", b"{", "JSON"),
        ("application/json", b"[]", "The body"),
        ("application/json", b'"x"', "The body"),
        ("application/json", b"\xff\xfe", "JSON"),
        ("application/json", b'{"images": ["\\ud800"]}', "JSON"),
        ("application/json", b'{"images": ["x"], "score_threshold": NaN}', "score_threshold"),
        ("application/json", b'{"images": ["x"], "score_threshold": 1e999}', "score_threshold"),
        ("application/json", b'{"images": ' + b"[" * 5000, "JSON"),
        ("Application/JSON; charset=utf-8", b"{}", "no picture"),
        ("multipart/form-data", form(part("images", b"x")), "no boundary"),
        (TYPE, form(), "no picture"),
        (TYPE, form(part("images", b"x"), part("model", b"a"), part("model", b"b")), "'model' was given 2 times"),
        (TYPE, form(part("images", b"x"), part("score_threshold", b"half")), "score_threshold"),
        (TYPE, form(part("images", b"x"), part("file", b"x")), "no option 'file'"),
    ],
)
def test_a_body_that_cannot_be_used_says_why(
    serve: Serve, make_model: MakeModel, content_type: str, body: bytes, text: str
) -> None:
    served = serve(make_model("detr", "toy"))
    answer = served.client.post("/v1/vision/detect", content=body, headers={"Content-Type": content_type})
    assert text in told(answer)


def test_options_in_the_url_are_not_dropped_silently(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("detr", "toy"))
    url = "/v1/vision/detect?response=annotated"
    assert "not of the URL" in told(served.client.post(url, files={"image": encode()}))


def test_pictures_never_reach_the_log_nor_the_error(
    serve: Serve, make_model: MakeModel, encode: Encode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    served = serve(make_model("detr", "toy"))
    text = base64.b64encode(encode() * 3).decode()
    for images in ([text], [f"data:image/png;base64,{text}*"], [{"url": text, "x": 1}], [[text]], text):
        answer = served.post("detect", {"images": images})
        assert text[:24] not in answer.text
        assert text[:24] not in caplog.text


@pytest.mark.parametrize("field", ["images", "classes", "prompts"])
@pytest.mark.parametrize("wrong", [[], True, 1.5])
def test_as_many_complaints_about_a_long_list_as_about_a_short_one(field: str, wrong: Any) -> None:
    """Each that pydantic notes takes a kilobyte: three bytes of a body would become one."""

    def num_complaints(count: int) -> int:
        with pytest.raises(ValidationError) as caught:
            SegmentOptions.model_validate_json(json.dumps({field: [wrong] * count}), strict=True)
        return caught.value.error_count()

    assert num_complaints(1000) == num_complaints(1)
