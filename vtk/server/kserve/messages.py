"""The protocol's protobuf messages, from a table: nothing is generated and nothing enters the process-wide pool.

tritonclient registers messages of the same names in that pool, so a second registration there would fail. Names,
numbers and types are those of the Open Inference Protocol; repository, configuration and statistics are Triton's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

# "number name type": `type*` is repeated, `type{}` a map from string, `type|group` a member of a oneof.
# A name with a dot is a message inside another.
_TABLE: Mapping[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": ("1 name string", "2 version string"),
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("1 name string", "2 version string", "3 extensions string*"),
    "ModelMetadataRequest": ("1 name string", "2 version string"),
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions string*",
        "3 platform string",
        "4 inputs ModelMetadataResponse.TensorMetadata*",
        "5 outputs ModelMetadataResponse.TensorMetadata*",
    ),
    "ModelMetadataResponse.TensorMetadata": ("1 name string", "2 datatype string", "3 shape int64*"),
    "InferParameter": (
        "1 bool_param bool|parameter_choice",
        "2 int64_param int64|parameter_choice",
        "3 string_param string|parameter_choice",
        "4 double_param double|parameter_choice",
        "5 uint64_param uint64|parameter_choice",
    ),
    "InferTensorContents": (
        "1 bool_contents bool*",
        "2 int_contents int32*",
        "3 int64_contents int64*",
        "4 uint_contents uint32*",
        "5 uint64_contents uint64*",
        "6 fp32_contents float*",
        "7 fp64_contents double*",
        "8 bytes_contents bytes*",
    ),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters InferParameter{}",
        "5 inputs ModelInferRequest.InferInputTensor*",
        "6 outputs ModelInferRequest.InferRequestedOutputTensor*",
        "7 raw_input_contents bytes*",
    ),
    "ModelInferRequest.InferInputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters InferParameter{}",
        "5 contents InferTensorContents",
    ),
    "ModelInferRequest.InferRequestedOutputTensor": ("1 name string", "2 parameters InferParameter{}"),
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters InferParameter{}",
        "5 outputs ModelInferResponse.InferOutputTensor*",
        "6 raw_output_contents bytes*",
    ),
    "ModelInferResponse.InferOutputTensor": (
        "1 name string",
        "2 datatype string",
        "3 shape int64*",
        "4 parameters InferParameter{}",
        "5 contents InferTensorContents",
    ),
    "ModelConfigRequest": ("1 name string", "2 version string"),
    "ModelConfigResponse": ("1 config ModelConfig",),
    "ModelConfig": (
        "1 name string",
        "2 platform string",
        "4 max_batch_size int32",
        "5 input ModelInput*",
        "6 output ModelOutput*",
        "11 dynamic_batching ModelDynamicBatching|scheduling_choice",
        "17 backend string",
    ),
    "ModelInput": ("1 name string", "2 data_type DataType", "4 dims int64*", "8 optional bool"),
    "ModelOutput": ("1 name string", "2 data_type DataType", "3 dims int64*"),
    "ModelDynamicBatching": (
        "1 preferred_batch_size int32*",
        "2 max_queue_delay_microseconds uint64",
        "4 priority_levels uint64",
        "5 default_priority_level uint64",
    ),
    "ModelStatisticsRequest": ("1 name string", "2 version string"),
    "ModelStatisticsResponse": ("1 model_stats ModelStatistics*",),
    "ModelStatistics": (
        "1 name string",
        "2 version string",
        "4 inference_count uint64",
        "5 execution_count uint64",
        "6 inference_stats InferStatistics",
    ),
    "InferStatistics": (
        "3 queue StatisticDuration",
        "4 compute_input StatisticDuration",
        "5 compute_infer StatisticDuration",
        "6 compute_output StatisticDuration",
    ),
    "StatisticDuration": ("1 count uint64", "2 ns uint64"),
    "RepositoryIndexRequest": ("1 repository_name string", "2 ready bool"),
    "RepositoryIndexResponse": ("1 models RepositoryIndexResponse.ModelIndex*",),
    "RepositoryIndexResponse.ModelIndex": ("1 name string", "2 version string", "3 state string", "4 reason string"),
    "ModelRepositoryParameter": (
        "1 bool_param bool|parameter_choice",
        "2 int64_param int64|parameter_choice",
        "3 string_param string|parameter_choice",
        "4 bytes_param bytes|parameter_choice",
    ),
    "RepositoryModelLoadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters ModelRepositoryParameter{}",
    ),
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": (
        "1 repository_name string",
        "2 model_name string",
        "3 parameters ModelRepositoryParameter{}",
    ),
    "RepositoryModelUnloadResponse": (),
}
_DATA_TYPES = (
    "INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "STRING", "BF16",
)  # fmt: skip
_SCALARS = frozenset({"bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes"})


def _build() -> dict[str, Any]:
    """The classes by the table's names. Protobuf makes them at run time, so that type checkers know nothing of them."""
    file = FileDescriptorProto(name="vtk/kserve.proto", package=PACKAGE, syntax="proto3")
    data_type = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATA_TYPES):
        data_type.value.add(name=f"TYPE_{name}", number=number)
    made: dict[str, Any] = {}
    for name, lines in _TABLE.items():
        outer, _, inner = name.rpartition(".")
        made[name] = made[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=name)
        for line in lines:
            _add_field(made[name], name, *line.split())
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _TABLE}


def _add_field(message: Any, message_name: str, number: str, name: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
    base, _, group = kind.removesuffix("{}").removesuffix("*").partition("|")
    if kind.endswith("{}"):
        base = f"{message_name}.{_add_map_entry(message, message_name, name, base)}"
    if kind.endswith(("*", "{}")):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    if group:
        if group not in [item.name for item in message.oneof_decl]:
            message.oneof_decl.add(name=group)
        field.oneof_index = [item.name for item in message.oneof_decl].index(group)
    if base in _SCALARS:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{base.upper()}")
    else:
        field.type_name = f".{PACKAGE}.{base}"


def _add_map_entry(message: Any, message_name: str, field_name: str, value: str) -> str:
    """Protobuf's form of a map: a repeated message of key and value whose name follows from the field's."""
    entry: DescriptorProto = message.nested_type.add(name=f"{field_name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, f"{message_name}.{entry.name}", "1", "key", "string")
    _add_field(entry, f"{message_name}.{entry.name}", "2", "value", value)
    return str(entry.name)


MESSAGES: Mapping[str, Any] = _build()
