"""Which JSON schemas are enforced exactly. Everything else is refused: a keyword that is dropped would not be noticed.

xgrammar takes every schema and ignores what it cannot express, so this list holds only what was seen to be enforced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vtk.errors import RequestError

_NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions", "discriminator"),
}
_RANGE = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_BY_TYPE: dict[str, set[str]] = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _RANGE | {"multipleOf"},
    "number": _RANGE,
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
    "boolean": set(),
    "null": set(),
}
_FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_REFERENCES = ("#/$defs/", "#/definitions/", "#/properties/")
_MAX_DEPTH = 64


def check_schema(text: str) -> None:
    """Raise RequestError, with the place and the reason, for a schema that would not be enforced as written."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid_grammar", f"The JSON schema is not valid JSON: {error}.") from error
    try:
        _check(schema, "#", 0)
    except (AttributeError, TypeError, ValueError) as error:
        raise _refused("#", f"a keyword has a value of the wrong kind ({error})") from error


def check_regex(pattern: str, where: str) -> None:
    """Raise RequestError for what a finite automaton cannot follow, and for what is no regular expression."""
    found = re.search(r"\\[1-9bBAZ]|\(\?(?!:)", pattern)
    if found is not None:
        raise _refused(where, f"the pattern uses '{found.group()}'", "Look-around and references are not enforced.")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise _refused(where, f"the pattern is no regular expression ({error})") from error


def _check(schema: Any, where: str, depth: int) -> None:
    if schema is True:
        return
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        raise _refused(where, "a schema must be an object, nested at most 64 deep")
    for name in ("$defs", "definitions"):
        _check_each(schema.get(name, {}), f"{where}/{name}", depth)
    keywords = schema.keys() - _NOTES
    alone = next((name for name in _ALONE if name in keywords), None)
    if alone is None:
        _check_type(schema, keywords, where, depth)
        return
    others = keywords - {alone}
    if others and not (alone in ("const", "enum") and others == {"type"}):
        raise _refused(where, f"'{alone}' stands beside {_names(others)}", "Only one of them would be enforced.")
    _check_alone(alone, schema, where, depth)


def _check_alone(keyword: str, schema: Mapping[str, Any], where: str, depth: int) -> None:
    value = schema[keyword]
    if keyword == "$ref" and not (isinstance(value, str) and (value == "#" or value.startswith(_REFERENCES))):
        raise _refused(where, "'$ref' must be # or start with " + " or ".join(_REFERENCES))
    if keyword in ("const", "enum") and "type" in schema:
        wanted = _types(schema, where)
        values = value if keyword == "enum" and isinstance(value, list) else [value]
        if not all(wanted & _types_of(item) for item in values):
            raise _refused(where, f"'{keyword}' holds a value that is not of its 'type'")
    if keyword == "allOf" and not (isinstance(value, list) and len(value) == 1):
        raise _refused(where, "'allOf' has several members", "Merge them into one schema.")
    if keyword == "oneOf" and "discriminator" not in schema and not _are_of_different_types(value):
        raise _refused(where, "'oneOf' has members that may overlap", "Use 'anyOf'.")
    if keyword in ("anyOf", "oneOf", "allOf"):
        if not isinstance(value, list) or not value:
            raise _refused(where, f"'{keyword}' must be a list of schemas")
        _check_each(dict(enumerate(value)), f"{where}/{keyword}", depth)


def _check_type(schema: Mapping[str, Any], keywords: set[str], where: str, depth: int) -> None:
    types = _types(schema, where)
    known = set[str]().union(*(_BY_TYPE[name] for name in types))
    unknown = keywords - known - {"type"}
    if unknown:
        of = f"for type {_names(types)}" if types else "without a 'type'"
        raise _refused(where, f"{_names(unknown)} {of} would not be enforced")
    if "string" in types:
        _check_string(schema, where)
    missing = set(schema.get("required", ())) - set(schema.get("properties", ()))
    if missing:
        raise _refused(where, f"'required' names {_names(missing)}, which 'properties' does not have")
    _check_each(schema.get("properties", {}), f"{where}/properties", depth)
    _check_each(dict(enumerate(schema.get("prefixItems", ()))), f"{where}/prefixItems", depth)
    for name in ("items", "additionalProperties"):
        if schema.get(name, False) is not False:
            _check(schema[name], f"{where}/{name}", depth + 1)


def _check_string(schema: Mapping[str, Any], where: str) -> None:
    rules = [name for name in ("pattern", "format") if name in schema]
    if rules and len(schema.keys() & _BY_TYPE["string"]) > 1:
        raise _refused(where, f"'{rules[0]}' cannot be combined with a length or another rule")
    if "pattern" in schema:
        check_regex(str(schema["pattern"]), where)
    if schema.get("format", "date") not in _FORMATS:
        known = ", ".join(sorted(_FORMATS))
        raise _refused(where, f"the format '{schema['format']}' would not be enforced", f"Enforced are: {known}.")


def _check_each(schemas: Any, where: str, depth: int) -> None:
    if not isinstance(schemas, Mapping):
        raise _refused(where, "an object of schemas is expected")
    for name, schema in schemas.items():
        _check(schema, f"{where}/{name}", depth + 1)


def _types(schema: Mapping[str, Any], where: str) -> set[str]:
    value = schema.get("type", [])
    types = set(value) if isinstance(value, list) else {value}
    if not types <= _BY_TYPE.keys():
        raise _refused(where, f"the type {_names(types - _BY_TYPE.keys())} is unknown")
    return types


def _types_of(value: Any) -> set[str]:
    """JSON types that a value has; a whole number has two."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    return {{str: "string", float: "number", list: "array", dict: "object"}.get(type(value), "null")}


def _are_of_different_types(members: Any) -> bool:
    seen: set[str] = set()
    for member in members if isinstance(members, list) else ():
        kind = member.get("type") if isinstance(member, Mapping) else None
        kind = "number" if kind == "integer" else kind
        if not isinstance(kind, str) or kind in seen:
            return False
        seen.add(kind)
    return True


def _names(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in sorted(map(str, names)))


def _refused(where: str, reason: str, hint: str | None = None) -> RequestError:
    return RequestError("invalid_grammar", f"This cannot be enforced, at {where}: {reason}.", hint=hint)
