"""Our messages are those of the public protocol, as tritonclient's generated code has them, and do not meet them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from vtk.server.kserve.grpc_methods import methods
from vtk.server.kserve.messages import MESSAGES, SERVICE

# Messages of which vtk fills a part.
PARTS = {"ModelConfig", "ModelInput", "ModelOutput", "ModelDynamicBatching", "ModelStatistics", "InferStatistics"}


def public(name: str) -> Descriptor:
    """The generated message of that dotted name."""
    outer, *inner = name.split(".")
    module = service_pb2 if hasattr(service_pb2, outer) else model_config_pb2
    descriptor = module.DESCRIPTOR.message_types_by_name[outer]
    for part in inner:
        descriptor = descriptor.nested_types_by_name[part]
    return descriptor


def facts(field: FieldDescriptor) -> tuple[Any, ...]:
    """What decides the bytes on the wire."""
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof.name if field.containing_oneof else None
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    return (
        field.name, field.number, field.type, field.is_repeated, field.is_packed, kind and kind.full_name, oneof, is_map
    )  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_has_the_public_numbers_and_types(name: str) -> None:
    expected = {field.number: facts(field) for field in public(name).fields}
    for field in MESSAGES[name].DESCRIPTOR.fields:
        assert facts(field) == expected[field.number]
    if name not in PARTS:
        assert len(MESSAGES[name].DESCRIPTOR.fields) == len(expected)


def test_the_enum_of_data_types_is_the_public_one() -> None:
    ours = MESSAGES["ModelInput"].DESCRIPTOR.fields_by_name["data_type"].enum_type
    public_values = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values
    assert [(value.name, value.number) for value in ours.values] == [(v.name, v.number) for v in public_values]


def test_the_service_has_public_methods_only() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == SERVICE
    for name in methods(None):  # type: ignore[arg-type]
        method = service.methods_by_name[name]
        assert (method.client_streaming, method.server_streaming) == (False, False)
        assert method.input_type.name in MESSAGES
        assert method.output_type.name in MESSAGES


def test_our_messages_are_in_no_shared_pool() -> None:
    assert MESSAGES["ModelInferRequest"].DESCRIPTOR.file.pool is not descriptor_pool.Default()


@pytest.mark.parametrize("order", [("vtk.server.kserve.messages", "tritonclient.grpc")] * 2)
def test_both_can_be_imported_in_one_process(order: tuple[str, str], request: pytest.FixtureRequest) -> None:
    first, second = order if "order0" in request.node.name else order[::-1]
    subprocess.run([sys.executable, "-c", f"import {first}, {second}"], check=True, timeout=60)
