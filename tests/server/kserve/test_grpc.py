"""The protocol over gRPC where tritonclient does not go: typed contents, keys, limits, clients that leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from vtk.errors import UsageError
from vtk.server.kserve.grpc_codec import MAX_FIELDS, check_fields
from vtk.server.kserve.grpc_server import start_grpc
from vtk.server.settings import Limits, ServerSettings

Serve = Callable[[Any], AbstractContextManager[Any]]
Request = Any
KEY = "correct horse"


@pytest.fixture
def stub(mean_servers: Any) -> Iterator[Any]:
    with grpc.insecure_channel(mean_servers.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


def request_of(values: np.ndarray | None = None, **changes: Any) -> Request:
    """One row as raw content."""
    array = np.ones((1, 3, 4, 6), np.float32) if values is None else values
    message = service_pb2.ModelInferRequest(model_name="mean", raw_input_contents=[array.tobytes()], **changes)
    message.inputs.add(name="images", datatype="FP32", shape=array.shape)
    return message


def code_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    assert caught.value.details()
    return caught.value.code()


def test_typed_contents_are_read(stub: Any) -> None:
    message = request_of()
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.extend([2.0] * 72)
    answer = stub.ModelInfer(message)
    np.testing.assert_array_equal(np.frombuffer(answer.raw_output_contents[0], "<f4"), [2, 2, 2])


def hostile() -> Iterator[tuple[str, Request]]:
    yield "no input", service_pb2.ModelInferRequest(model_name="mean")
    for shape in ([-1, 3, 4, 6], [1 << 62, 3, 4, 6], [1 << 29, 3, 4, 6], [-(1 << 63)], [], [0, 3, 4, 6]):
        message = request_of()
        message.inputs[0].shape[:] = shape
        yield f"shape {shape}", message
    for size in (0, 287, 289):
        message = request_of()
        message.raw_input_contents[0] = bytes(size)
        yield f"{size} bytes", message
    message = request_of()
    message.raw_input_contents.append(b"")
    yield "more raw contents than inputs", message
    message = request_of()
    del message.raw_input_contents[:]
    yield "no contents", message
    message = request_of()
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp64_contents.extend([1.0] * 72)
    yield "contents of another type", message
    message = request_of()
    message.inputs[0].datatype = "BYTES"
    yield "another type", message
    message = request_of()
    message.parameters["priority"].SetInParent()
    yield "a parameter without a value", message
    message = request_of()
    message.parameters["priority"].string_param = "1"
    yield "a parameter of another type", message
    message = request_of()
    message.inputs[0].parameters["shared_memory_region"].string_param = "x"
    yield "shared memory", message
    message = request_of()
    message.inputs[0].name = "€" * 100_000
    yield "a name longer than metadata may be", message


@pytest.mark.parametrize(("what", "message"), list(hostile()))
def test_a_hostile_request_is_an_invalid_argument(stub: Any, what: str, message: Request) -> None:
    assert code_of(stub.ModelInfer, message) == grpc.StatusCode.INVALID_ARGUMENT
    assert stub.ModelInfer(request_of()).model_name == "mean"


def test_bytes_that_are_no_message_are_an_invalid_argument(mean_servers: Any) -> None:
    with grpc.insecure_channel(mean_servers.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        assert code_of(call, b"\xff\xff\xff") == grpc.StatusCode.INVALID_ARGUMENT
        other = channel.unary_unary("/inference.GRPCInferenceService/TraceSetting")
        assert code_of(other, b"") == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x32\x00", b"\x3a\x00", b"\x78\x01", b"\x7d\x00\x00\x00\x00"])
def test_a_message_of_countless_fields_is_refused_before_it_is_parsed(mean_servers: Any, field: bytes) -> None:
    """Two bytes on the wire are a kilobyte of objects: 64 MiB of empty inputs took all memory."""
    with grpc.insecure_channel(mean_servers.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="more than 1,024 fields"):
            call(field * (MAX_FIELDS + 1))


@given(
    st.lists(st.text(max_size=5) | st.integers(0, 1 << 63), max_size=20),
    st.binary(max_size=300),
    st.integers(0, 3),
)
def test_fields_are_counted_as_the_parser_does(values: list[str | int], blob: bytes, extra: int) -> None:
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[blob] * extra)
    for i, value in enumerate(values):
        if isinstance(value, str):
            message.parameters[str(i)].string_param = value
        else:
            message.parameters[str(i)].int64_param = value >> 1
    data = message.SerializeToString()
    check_fields(data)
    padded = data + b"\x2a\x00" * (MAX_FIELDS - 1 - extra - len(values))
    check_fields(padded)
    with pytest.raises(UsageError):
        check_fields(padded + b"\x2a\x00")


@given(st.binary(max_size=50))
def test_bytes_of_any_kind_are_counted_without_a_failure(data: bytes) -> None:
    check_fields(data)


def test_a_call_without_a_message_is_an_invalid_argument(mean_servers: Any) -> None:
    with grpc.insecure_channel(mean_servers.grpc) as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        assert code_of(call, iter(())) == grpc.StatusCode.INVALID_ARGUMENT


@contextmanager
def connect(serve: Serve, context: Any) -> Iterator[grpc.Channel]:
    with serve(context) as servers, grpc.insecure_channel(servers.grpc) as channel:
        yield channel


def with_settings(context: Any, **changes: Any) -> Any:
    return replace(context, settings=replace(context.settings, **changes))


def test_a_message_that_never_comes_has_a_time_limit(mean_context: Any, serve: Serve) -> None:
    with connect(serve, with_settings(mean_context, limits=Limits(body_timeout=0.1))) as channel:
        call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        leave = threading.Event()

        def messages() -> Iterator[bytes]:
            leave.wait(30)
            yield from ()

        try:
            assert code_of(call, messages(), timeout=20) == grpc.StatusCode.DEADLINE_EXCEEDED
        finally:
            leave.set()


def test_a_message_beyond_the_limit_is_refused(mean_context: Any, serve: Serve) -> None:
    with connect(serve, with_settings(mean_context, limits=Limits(max_body_bytes=1000))) as channel:
        stub = GRPCInferenceServiceStub(channel)
        message = request_of(np.ones((5, 3, 4, 6), np.float32))
        assert code_of(stub.ModelInfer, message) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.ModelInfer(request_of()).model_name == "mean"


def test_every_method_but_the_probes_needs_a_key(mean_context: Any, serve: Serve) -> None:
    with connect(serve, with_settings(mean_context, api_keys=("other", KEY))) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
        assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        wrong = [(("authorization", value),) for value in ("Bearer wrong", KEY, "Basic " + KEY, "", "Bearer")]
        twice = (("authorization", f"Bearer {KEY}"), ("authorization", "Bearer wrong"))
        for metadata in [None, *wrong, twice]:
            code = code_of(stub.ModelInfer, request_of(), metadata=metadata)
            assert code == grpc.StatusCode.UNAUTHENTICATED
        for name, kind in [
            ("ServerMetadata", service_pb2.ServerMetadataRequest),
            ("ModelReady", service_pb2.ModelReadyRequest),
            ("ModelMetadata", service_pb2.ModelMetadataRequest),
            ("ModelConfig", service_pb2.ModelConfigRequest),
            ("RepositoryIndex", service_pb2.RepositoryIndexRequest),
            ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest),
            ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest),
        ]:
            assert code_of(getattr(stub, name), kind()) == grpc.StatusCode.UNAUTHENTICATED
        right = (("authorization", f"Bearer {KEY}"),)
        assert stub.ModelInfer(request_of(), metadata=right).model_name == "mean"


def test_tritonclient_sends_a_key_as_a_header(mean_context: Any, serve: Serve) -> None:
    with serve(with_settings(mean_context, api_keys=(KEY,))) as servers:
        client = tritonclient.grpc.InferenceServerClient(servers.grpc)
        assert client.is_model_ready("mean", headers={"authorization": f"Bearer {KEY}"})
        client.close()


def test_a_failure_of_the_model_tells_nothing_of_the_inside(stub: Any, mean_model: Any) -> None:
    mean_model.entered = None
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request_of())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "Traceback" not in caught.value.details()


def test_an_unexpected_failure_is_told_to_the_log_only(
    stub: Any, mean_context: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(mean_context.runtime, "statuses", fail)
    with pytest.raises(grpc.RpcError) as caught:
        stub.RepositoryIndex(service_pb2.RepositoryIndexRequest())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "a secret path" in caplog.text


def test_model_control_can_be_off(mean_context: Any, serve: Serve) -> None:
    with connect(serve, with_settings(mean_context, allow_model_control=False)) as channel:
        stub = GRPCInferenceServiceStub(channel)
        load = service_pb2.RepositoryModelLoadRequest(model_name="mean")
        assert code_of(stub.RepositoryModelLoad, load) == grpc.StatusCode.PERMISSION_DENIED


def test_a_full_queue_says_when_to_come_again(make_mean: Any, serve: Serve) -> None:
    mean = make_mean(max_queued_pictures=1)
    with serve(mean.context) as servers, mean.context.runtime.vision("mean") as model:
        mean.model.gate.clear()
        mean.model.entered.clear()
        first = model.submit(np.zeros((3, 4, 6), np.float32))
        assert mean.model.entered.wait(30)
        with grpc.insecure_channel(servers.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
            GRPCInferenceServiceStub(channel).ModelInfer(request_of(np.ones((2, 3, 4, 6), np.float32)))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(caught.value.trailing_metadata())["retry-after"]) >= 1
        mean.model.gate.set()
        first.result(30)


def test_a_client_that_leaves_frees_its_place_in_the_queue(
    mean_context: Any, mean_model: Any, serve: Serve, wait_until: Any
) -> None:
    row = np.zeros((3, 4, 6), np.float32)
    with serve(mean_context) as servers, mean_context.runtime.vision("mean") as model:
        mean_model.gate.clear()
        mean_model.entered.clear()
        first = model.submit(row)
        assert mean_model.entered.wait(30)
        with grpc.insecure_channel(servers.grpc) as channel:
            call = GRPCInferenceServiceStub(channel).ModelInfer.future(request_of())
            wait_until(lambda: model.stats.num_queued == 1)
            call.cancel()
            wait_until(lambda: mean_context.runtime._table._num_leases == 1)
        before = model.stats.pictures
        mean_model.gate.set()
        first.result(30)
        model.submit(row).result(30)
        assert model.stats.pictures == before + 2, "the row of the client that left was not computed"


def test_a_port_that_is_taken_is_a_usage_error(mean_context: Any, mean_servers: Any) -> None:
    port = int(mean_servers.grpc.rpartition(":")[2])
    with pytest.raises(UsageError, match="--grpc-port"):
        asyncio.run(start_grpc(replace(mean_context, settings=ServerSettings(grpc_port=port))))
