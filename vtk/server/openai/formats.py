"""How a client asks for an output of a given form: OpenAI's response_format, vLLM's structured_outputs and guided_*."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from vtk.errors import RequestError
from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.server.openai.errors import ParamError
from vtk.server.openai.strict import Body, Items


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(Body):
    """A named schema; it is enforced whether `strict` is set or not."""

    name: str
    description: str = ""
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool = False


class JsonSchemaFormat(Body):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Body):
    """vLLM's structured_outputs: exactly one of these."""

    NOT_OFFERED = {"disable_fallback": False, "disable_any_whitespace": False, "disable_additional_properties": False}

    json_: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: Items[str] | None = None
    grammar: str | None = None
    json_object: bool = False


class FormatFields(Body):
    """The fields of a request that say which form its output must have; one of them at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Items[str] | None = None
    guided_grammar: str | None = None

    @property
    def form(self) -> str | None:
        """The name of the field that says the form. ParamError for more than one."""
        given = [name for name in FormatFields.model_fields if getattr(self, name) is not None]
        if len(given) > 1:
            raise ParamError(given[1], f"'{given[0]}' and '{given[1]}' cannot be combined.")
        return given[0] if given else None

    def structured(self) -> StructuredOutputsParams | None:
        """What the engine enforces, None for any text. RequestError for more than one form, and for a wrong one."""
        form = self.form
        try:
            return None if form is None else self._structured()
        except RequestError as error:
            raise ParamError(form or "", error.message, code=error.code, hint=error.hint) from error

    def _structured(self) -> StructuredOutputsParams | None:
        if self.response_format is not None:
            return _of_response_format(self.response_format)
        if (spec := self.structured_outputs) is not None:
            choice = None if spec.choice is None else tuple(spec.choice)
            return StructuredOutputsParams(spec.json_, spec.regex, choice, spec.grammar, spec.json_object)
        choice = None if self.guided_choice is None else tuple(self.guided_choice)
        return StructuredOutputsParams(self.guided_json, self.guided_regex, choice, self.guided_grammar)


def _of_response_format(wanted: TextFormat | JsonObjectFormat | JsonSchemaFormat) -> StructuredOutputsParams | None:
    if isinstance(wanted, JsonSchemaFormat):
        return StructuredOutputsParams(json=wanted.json_schema.schema_)
    return StructuredOutputsParams(json_object=True) if isinstance(wanted, JsonObjectFormat) else None
