"""Bodies of the routes that read them themselves, as the OpenAPI description tells them."""

from __future__ import annotations

from typing import Any

_PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_INPUT = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "description": "The model's own tensor, or `image` for encoded pictures."},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": {"type": "string", "enum": ["FP32", "BYTES"]},
        "parameters": _PARAMETERS,
        "data": {"type": "array", "items": {}, "description": "Numbers, flat or nested; pictures in base64."},
    },
}
_OUTPUT = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "parameters": _PARAMETERS},
}
_INFER = {
    "type": "object",
    "required": ["inputs"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {"type": "array", "items": _INPUT, "minItems": 1, "maxItems": 1},
        "outputs": {"type": "array", "items": _OUTPUT},
    },
}


def _body(schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}


def _optional(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return _body({"type": "object", "properties": {name: schema}, "additionalProperties": False}, required=False)


INFER_BODY = _body(_INFER, required=True)
INDEX_BODY = _optional("ready", {"type": "boolean"})
CONTROL_BODY = _optional("parameters", _PARAMETERS)
