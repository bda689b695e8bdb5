"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from vtk.server.context import ServerContext
from vtk.server.openai.answering import JSON
from vtk.server.openai.errors import ParamError
from vtk.server.openai.generation_fields import check_size
from vtk.server.openai.messages import Messages, template_messages
from vtk.server.openai.rendering import RenderingFields, told
from vtk.server.openai.responses import ERRORS, Detokenized, Tokens
from vtk.server.openai.route import OpenAIRoute
from vtk.server.openai.strict import Body, Items
from vtk.server.openai.tools import Tool, plan_tools

if TYPE_CHECKING:
    from vtk.llm_serving.tokenizer.tokenizer import Tokenizer
    from vtk.serving.language_model import LanguageModel

T = TypeVar("T")


class TokenizeRequest(RenderingFields):
    """A text, or messages for the chat template.

    add_special_tokens: what the tokenizer adds by its own rule; by default for a text and not for messages, whose
    template writes every special token itself.
    """

    NOT_OFFERED = {"mm_processor_kwargs": {}}

    model: str
    prompt: str | None = None
    messages: Messages | None = None
    tools: Items[Tool] = []
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ParamError("prompt", "Send either 'prompt' or 'messages'.")
        return self

    def text(self, tokenizer: Tokenizer) -> str:
        """What is tokenized."""
        if self.messages is None:
            return self.prompt or ""
        source = None if tokenizer.template is None else tokenizer.template.source
        tools = plan_tools(self.tools, None, parallel=True, template=source).tools
        return self.render(tokenizer, *told(template_messages(self.messages), tools, source))

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids."""
        adds = self.messages is None if self.add_special_tokens is None else self.add_special_tokens
        return tokenizer.encode(self.text(tokenizer), add_special_tokens=adds)


class DetokenizeRequest(Body):
    """Token ids of a model."""

    model: str
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]


def router(context: ServerContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Tokens"], route_class=OpenAIRoute)
    limits = context.settings.limits

    @routes.post("/tokenize", response_model=Tokens, responses=ERRORS)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """The token ids of a text or a conversation."""
        with context.runtime.language(body.model) as model:
            named = "prompt" if body.messages is None else "messages"
            check_size(named, body.model_dump(include={"prompt", "messages", "tools"}), limits)
            return await asyncio.to_thread(_tokenized, body, model)

    @routes.post("/detokenize", response_model=Detokenized, responses=ERRORS)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids, special tokens included."""
        with context.runtime.language(body.model) as model:
            check_size("tokens", body.tokens, limits)
            _check_ids(body.tokens, model.loaded.runner.vocab_size)
            decode: Callable[[], str] = lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False)  # noqa: E731
            answer: Detokenized = {"prompt": await asyncio.to_thread(decode)}
        return JSON(answer)

    return routes


def _tokenized(body: TokenizeRequest, model: LanguageModel) -> Response:
    ids = body.encode(model.tokenizer)
    strs = None
    if body.return_token_strs:
        strs = [model.tokenizer.token_bytes(token).decode(errors="replace") for token in ids]
    answer: Tokens = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
        "token_strs": strs,
    }
    return JSON(answer)


def _check_ids(ids: list[int], vocab_size: int) -> None:
    wrong = next((token for token in ids if token >= vocab_size), None)
    if wrong is not None:
        raise ParamError("tokens", f"Token ids of this model are 0 to {vocab_size - 1}; 'tokens' has {wrong}.")
