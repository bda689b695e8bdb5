"""The base of every request body: nothing that changes the answer is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from vtk.server.openai.errors import ParamError


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
        return sent
