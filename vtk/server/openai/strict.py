"""The base of every request body: nothing that changes the answer is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vtk.server.openai.errors import ParamError

T = TypeVar("T")

MAX_ITEMS = 10_000
MAX_SHOWN = 100  # characters of a name that a message quotes

# Only the first complaint is told, and pydantic would keep a kilobyte for each of a million wrong items.
Items = Annotated[list[T], Field(fail_fast=True, max_length=MAX_ITEMS)]
TokenIds = Annotated[list[int], Field(fail_fast=True, min_length=1)]


class Body(BaseModel):
    """Fields of exactly the types that are declared; a field that is null was not sent.

    NOT_OFFERED: fields that users of OpenAI or vLLM know and vtk has not, with the value that asks for nothing and is
    therefore taken. Every other unknown field is refused.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    NOT_OFFERED: ClassVar[Mapping[str, object]] = {}

    @model_validator(mode="before")
    @classmethod
    def _take_known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        sent = {name: value for name, value in data.items() if value is not None}
        for name in sent.keys() & cls.NOT_OFFERED.keys():
            if sent.pop(name) != cls.NOT_OFFERED[name]:
                raise ParamError(name, f"vtk does not support '{name}'.", code="unsupported_parameter")
        cls._check_count(sent)
        return sent

    @classmethod
    def _check_count(cls, sent: Mapping[str, Any]) -> None:
        """Refuse more fields than there are: of a million, pydantic would note every one."""
        if len(sent) > len(cls.model_fields):
            known = {field.alias or name for name, field in cls.model_fields.items()}
            name = next(name for name in sent if name not in known)[:MAX_SHOWN]
            raise ParamError(name, f"Unrecognized request argument supplied: {name}.", code="unknown_parameter")
