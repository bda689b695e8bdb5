"""`/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from vtk.errors import RequestError
from vtk.server.context import ServerContext
from vtk.server.openai.answering import answer
from vtk.server.openai.chat_writer import ChatWriter
from vtk.server.openai.errors import ParamError
from vtk.server.openai.generation_fields import COMMON_NOT_OFFERED, GenerationFields, StreamOptions, check_size
from vtk.server.openai.messages import Messages, TemplateMessage, template_messages
from vtk.server.openai.rendering import RenderingFields, told
from vtk.server.openai.responses import ERRORS, ChatCompletion
from vtk.server.openai.route import OpenAIRoute
from vtk.server.openai.session import Session, blamed
from vtk.server.openai.strict import Items
from vtk.server.openai.tools import Tool, ToolChoice, plan_tools

if TYPE_CHECKING:
    from vtk.llm_serving.tokenizer.tokenizer import Tokenizer


class ChatRequest(GenerationFields, RenderingFields):
    """A conversation to continue."""

    NOT_OFFERED: ClassVar = {
        **COMMON_NOT_OFFERED,
        "add_special_tokens": False,
        "documents": [],
        "echo": False,
        "include_reasoning": True,
        "modalities": ["text"],
    }

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    tools: Items[Tool] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report for each token; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ParamError("top_logprobs", "'top_logprobs' is only allowed with 'logprobs'.")
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ParamError("max_tokens", "'max_tokens' and 'max_completion_tokens' say different things.")
        return self


def router(context: ServerContext) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"], route_class=OpenAIRoute)

    @routes.post("/v1/chat/completions", response_model=ChatCompletion, responses=ERRORS)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Continue a conversation; with `stream`, as server-sent events of chunks."""

        async def start(session: Session) -> ChatWriter:
            return await _start(context, session, body)

        options = (body.stream_options or StreamOptions()) if body.stream else None
        return await answer(context, request, prefix="chatcmpl", model=body.model, options=options, start=start)

    return routes


async def _start(context: ServerContext, session: Session, body: ChatRequest) -> ChatWriter:
    template = session.model.tokenizer.template
    source = None if template is None else template.source
    try:
        plan = plan_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, template=source)
    except RequestError as error:
        raise blamed(error, "tools") from error
    if plan.structured is not None and body.form is not None:
        raise ParamError(body.form, f"Tools that hold the output and '{body.form}' cannot be combined.")
    params = body.sampling(
        context.settings.limits,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=body.num_logprobs,
        structured=plan.structured or body.structured(),
    )
    session.check(params, body.priority)
    messages, tools = told(template_messages(body.messages), plan.tools, source)
    check_size("messages", messages, context.settings.limits)
    try:
        generation = await session.model.prepare(
            messages if body.is_plain else await _encode(session.model.tokenizer, body, messages, tools),
            params,
            request_id=session.request_id,
            tools=tools,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
        await session.start([generation])
    except RequestError as error:
        raise blamed(error, "messages", "tools" if plan.structured is not None else body.form) from error
    return ChatWriter(session, plan, body.num_logprobs)


async def _encode(
    tokenizer: Tokenizer, body: ChatRequest, messages: list[TemplateMessage], tools: list[dict[str, Any]] | None
) -> list[int]:
    """The prompt where more than messages and tools decides it."""

    def encode() -> list[int]:
        return tokenizer.encode(body.render(tokenizer, messages, tools), add_special_tokens=False)

    return await asyncio.to_thread(encode)
