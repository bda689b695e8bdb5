"""The binary and JSON forms of tensors: laws, and what must be refused before anything is allocated."""

from __future__ import annotations

import base64
import json
import math
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from vtk.errors import UsageError
from vtk.server.kserve.http_codec import HEADER_LENGTH, read_request, write_response
from vtk.server.kserve.request import InferRequest, InferResponse
from vtk.server.kserve.tensors import (
    DATATYPES,
    InputTensor,
    OutputTensor,
    TensorMeta,
    check_input,
    join_elements,
    read_bytes,
    read_floats,
    split_elements,
    write_binary,
    write_elements,
)

floats = hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=5), elements=st.floats(width=32))
finite = hnp.arrays(
    np.float32,
    hnp.array_shapes(max_dims=4, max_side=5),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
META = TensorMeta("images", "FP32", (-1, 3, 4, 6))


def read(body: bytes, header_length: int | str | None = None) -> InferRequest:
    return read_request(body, None if header_length is None else str(header_length), model="mean", version="")


@settings(deadline=None)
@given(array=floats)
def test_floats_survive_the_binary_form_bit_by_bit(array: np.ndarray) -> None:
    found = read_floats(InputTensor("images", "FP32", array.shape, write_binary(array)))
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@settings(deadline=None)
@given(array=finite, nested=st.booleans())
def test_floats_survive_json(array: np.ndarray, nested: bool) -> None:
    data = json.loads(json.dumps(array.tolist() if nested else array.ravel().tolist()))
    found = read_floats(InputTensor("images", "FP32", array.shape, data))
    np.testing.assert_array_equal(found, array)


@settings(deadline=None)
@given(elements=st.lists(st.binary(max_size=40), max_size=8))
def test_byte_elements_survive_and_are_those_of_tritonclient(elements: list[bytes]) -> None:
    data = join_elements(elements)
    assert split_elements(data, len(elements), name="image") == elements
    array = np.array(elements, dtype=object)
    if elements:
        assert serialize_byte_tensor(array).item() == data
    assert deserialize_bytes_tensor(data).tolist() == elements


@settings(deadline=None)
@given(data=st.binary(max_size=60), count=st.integers(0, 5))
def test_any_bytes_are_either_refused_or_exactly_the_elements(data: bytes, count: int) -> None:
    try:
        elements = split_elements(data, count, name="image")
    except UsageError:
        return
    assert len(elements) == count
    assert join_elements(elements) == data


@settings(deadline=None)
@given(array=floats, names=st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
def test_a_binary_answer_is_read_back_from_its_own_header(array: np.ndarray, names: list[str]) -> None:
    outputs = tuple(OutputTensor(name, array, binary=True) for name in names)
    body, headers = write_response(InferResponse("mean", "1", "x", outputs))
    split = int(headers[HEADER_LENGTH])
    told = json.loads(body[:split])
    assert [item["name"] for item in told["outputs"]] == names
    assert body[split:] == array.tobytes() * len(names)
    assert {item["parameters"]["binary_data_size"] for item in told["outputs"]} == {array.nbytes}


@pytest.mark.parametrize("dtype", DATATYPES)
def test_every_type_of_an_engine_has_a_name_and_both_forms(dtype: str) -> None:
    tensor = OutputTensor("x", np.ones((2, 1), dtype), binary=False)
    assert np.dtype(dtype).itemsize * 2 == len(write_binary(tensor.array))
    assert write_elements(tensor) == [1, 1]
    assert write_binary(tensor.array.astype(np.dtype(dtype).newbyteorder(">"))) == write_binary(tensor.array)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_no_word_for_what_is_not_finite(value: float) -> None:
    """Python would write NaN, which no other JSON reader takes."""
    tensor = OutputTensor("x", np.array([[value, 1]], np.float32), binary=False)
    with pytest.raises(UsageError, match="binary_data"):
        write_response(InferResponse("mean", "1", "", (tensor,)))


@pytest.mark.parametrize(
    ("datatype", "shape"),
    [
        ("FP32", ()),
        ("FP32", (72,)),
        ("FP32", (0, 3, 4, 6)),
        ("FP32", (-1, 3, 4, 6)),
        ("FP32", (9, 3, 4, 6)),
        ("FP32", (1, 3, 4, 6, 1)),
        ("FP32", (1, 3, 6, 4)),
        ("FP32", (1 << 62, 3, 4, 6)),
        ("FP32", (1, 3, -4, -6)),
        ("FP32", (1, 1 << 32, 1 << 32, 6)),
        ("FP64", (1, 3, 4, 6)),
        ("", (1, 3, 4, 6)),
    ],
)
def test_a_shape_that_is_not_the_models_is_refused(datatype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"must be FP32 of shape \[N, 3, 4, 6\] with N from 1 to 8; got"):
        check_input(InputTensor("images", datatype, shape, b""), META, 8)


@pytest.mark.parametrize("size", [0, 1, 4 * 72 - 1, 4 * 72 + 1, 4 * 72 * 2])
def test_binary_data_must_be_as_long_as_the_shape_says(size: int) -> None:
    with pytest.raises(UsageError, match=rf"must have 288 bytes of binary data; got {size}"):
        read_floats(InputTensor("images", "FP32", (1, 3, 4, 6), bytes(size)))


@pytest.mark.parametrize(
    "data",
    [
        [1, 2],
        [[1, 2, 3, 4]],
        [1, 2, 3, "4"],
        [1, 2, 3, None],
        [1, 2, 3, {}],
        [True, False, True, True],
        [[1, 2], [3]],
        [1, 2, 3, 1e39],
        [1, 2, 3, 10**400],
        [1, 2, 3, [4]],
        [],
    ],
)
def test_json_data_must_be_numbers_of_the_shape(data: list[Any]) -> None:
    with pytest.raises(UsageError, match="Input 'x'"):
        read_floats(InputTensor("x", "FP32", (2, 2), data))


def test_json_pictures_are_base64() -> None:
    data = [base64.b64encode(b"\x89PNG").decode(), ""]
    assert read_bytes(InputTensor("image", "BYTES", (2,), data)) == [b"\x89PNG", b""]
    for wrong in ("not base64!", "é", 7, None, ["aGk="]):
        with pytest.raises(UsageError, match="base64"):
            read_bytes(InputTensor("image", "BYTES", (1,), [wrong]))
    with pytest.raises(UsageError, match="1 element"):
        read_bytes(InputTensor("image", "BYTES", (1,), ["aGk=", "aGk="]))


@pytest.mark.parametrize("claim", [3, 1 << 31, (1 << 32) - 1])
def test_an_element_that_claims_more_than_there_is_allocates_nothing(claim: int) -> None:
    with pytest.raises(UsageError, match=f"element 0 at byte 0 announces {claim:,} bytes"):
        split_elements(struct.pack("<I", claim) + b"hi", 1, name="image")


def test_endless_empty_elements_stop_at_the_shape() -> None:
    """64 MiB hold 16 million empty elements: the shape says how many are looked at."""
    with pytest.raises(UsageError, match="2 element"):
        split_elements(bytes(1 << 26), 2, name="image")


IMAGES = {"name": "images", "shape": [1, 3, 4, 6], "datatype": "FP32", "parameters": {"binary_data_size": 288}}


def with_input(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in {**IMAGES, **changes}.items() if value is not ...}]}


def test_a_binary_request_is_split_where_its_header_says() -> None:
    values = np.random.default_rng(0).normal(size=(1, 3, 4, 6)).astype(np.float32)
    text = json.dumps({"id": "é", **with_input()}).encode()
    request = read(text + values.tobytes(), len(text))
    assert request.id == "é"
    np.testing.assert_array_equal(read_floats(request.inputs[0]), values)


@pytest.mark.parametrize("length", ["", "-1", "0", "9999999", "1e3", "٣", "9" * 5000, "12, 12"])
def test_a_header_length_outside_the_body_is_refused(length: str) -> None:
    with pytest.raises(UsageError, match=HEADER_LENGTH):
        read(b"{}" + bytes(20), length)


@pytest.mark.parametrize(
    ("body", "blob"),
    [
        (with_input(), 287),
        (with_input(), 289),
        (with_input(parameters={"binary_data_size": -1}), 288),
        (with_input(parameters={"binary_data_size": 1 << 31}), 288),
        (with_input(parameters={"binary_data_size": 1 << 80}), 288),
        (with_input(parameters={"binary_data_size": "288"}), 288),
        (with_input(parameters={"binary_data_size": 288.0}), 288),
        (with_input(parameters={"binary_data_size": True}), 288),
        (with_input(parameters={"shared_memory_region": "x"}), 288),
        (with_input(parameters=[]), 288),
        (with_input(parameters=...), 288),
        (with_input(data=[0] * 72), 288),
        (with_input(data=[0] * 72, parameters=...), 1),
        (with_input(data={}, parameters=...), 0),
        (with_input(shape=None), 288),
        (with_input(shape=[1, 3, 4, "6"]), 288),
        (with_input(shape=[1, 3, 4, 6.0]), 288),
        (with_input(shape=[True, 3, 4, 6]), 288),
        (with_input(name=5), 288),
        (with_input(name=...), 288),
        (with_input(datatype=None), 288),
        (with_input(color="red"), 288),
        ({"inputs": {}}, 0),
        ({"inputs": [5]}, 0),
        ({"inputs": [], "id": 5}, 0),
        ({"inputs": [], "model": "x"}, 0),
        ({"inputs": [], "outputs": [{"name": "a", "parameters": {"classification": "2"}}]}, 0),
        ({"inputs": [], "outputs": [{"name": "a", "parameters": {"binary_data": 1}}]}, 0),
        ({"inputs": [], "outputs": [{"name": "a", "shape": []}]}, 0),
        ({"inputs": [], "parameters": {"timeout": -1}}, 0),
        ({"inputs": [], "parameters": {"timeout": 1.5}}, 0),
        ({"inputs": [], "parameters": {"timeout": 10**400}}, 0),
        ({"inputs": [], "parameters": {"priority": -1}}, 0),
        ({"inputs": [], "parameters": {"priority": True}}, 0),
    ],
)
def test_a_malformed_request_is_a_usage_error(body: dict[str, Any], blob: int) -> None:
    text = json.dumps(body).encode()
    with pytest.raises(UsageError):
        read(text + bytes(blob), len(text))


@pytest.mark.parametrize(
    "body",
    [b"[]", b"null", b"5", b"{", b'{"inputs": NaN}', b"\xff\xfe", b"[" * 100_000, b"\x00", b'{"id": "\xff"}',
     b'{"inputs": [Infinity]}', b'{"id": ' + b"9" * 10_000 + b"}"],
)  # fmt: skip
def test_what_is_no_json_object_is_a_usage_error(body: bytes) -> None:
    with pytest.raises(UsageError):
        read(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "datatype", "data", "parameters", "inputs", "outputs", "id"]), inner
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(value=json_values, blob=st.binary(max_size=10))
def test_no_json_makes_the_reader_fail_otherwise(value: Any, blob: bytes) -> None:
    text = json.dumps(value).encode()
    try:
        request = read(text + blob, len(text))
    except UsageError:
        return
    for tensor in request.inputs:
        with suppress(UsageError):
            check_input(tensor, TensorMeta("x", "FP32", (-1,)), 8)
            read_floats(tensor)
