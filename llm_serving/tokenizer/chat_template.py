"""Chat templates: Jinja in a sandbox, with the names that transformers gives them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from vtk.errors import CheckpointError, RequestError
from vtk.llm_serving.tokenizer.bounded_jinja import METER, BoundedEnvironment, Meter
from vtk.llm_serving.tokenizer.bounded_values import EndlessError

MAX_TEMPLATE_CHARACTERS = 1 << 20
_NAMES = {"messages", "tools", "documents", "add_generation_prompt", METER}
# What operations on values of the wrong shape or size raise.
_FAILURES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
NO_VARIABLES: Mapping[str, Any] = {}


class _Refused(Exception):
    """The template called raise_exception."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; serving only needs what is inside."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body itself."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. special_tokens: `bos_token`, `eos_token`, … as the template sees them."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        environment.bound()
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise CheckpointError(f"The chat template has {len(source)} characters.")
        try:
            self._template = environment.compiled(source)
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {str(error.message)[:200]}"
            raise CheckpointError(f"The chat template is no valid Jinja, {where}.") from error
        except (*_FAILURES, SyntaxError) as error:  # of its constants, or where it is nested too deeply for Python
            raise CheckpointError(f"The chat template cannot be compiled: {_reason(error)}.") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """The conversation as text. RequestError, in one line, for messages that the template does not take.

        variables: of the template's own, such as `enable_thinking`; RequestError for names that mean something else.
        """
        if taken := sorted(variables.keys() & (_NAMES | self._special_tokens.keys())):
            raise RequestError("invalid_request", f"'{taken[0]}' is not a variable of the chat template's own.")
        try:
            return self._template.render(
                **variables,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
                **{METER: Meter()},
            )
        except EndlessError as error:
            raise RequestError(
                "invalid_request",
                f"The model's chat template takes too much: {error}.",
                hint="Send fewer or shorter messages; if it says so of short ones, the template itself is broken.",
            ) from error
        except (*_FAILURES, _Refused, TemplateError) as error:
            raise RequestError(
                "invalid_request", f"The model's chat template refuses these messages: {_reason(error)}"
            ) from error


def _reason(error: Exception) -> str:
    text = "it gives no reason" if isinstance(error, _Refused) else type(error).__name__
    return (str(error) or text).splitlines()[0][:300]


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _strftime_now(format_: str) -> str:
    return datetime.datetime.now().astimezone().strftime(format_)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML and sorts keys; models are trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
