"""`/v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

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
from vtk.server.openai.messages import Messages, template_messages
from vtk.server.openai.responses import ERRORS, ChatCompletion
from vtk.server.openai.route import OpenAIRoute
from vtk.server.openai.session import Session, blamed
from vtk.server.openai.tools import Tool, ToolChoice, plan_tools, takes_tools, with_tools


class ChatRequest(GenerationFields):
    """A conversation to continue."""

    NOT_OFFERED: ClassVar = {
        **COMMON_NOT_OFFERED,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "chat_template_kwargs": {},
        "continue_final_message": False,
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
    tools: list[Tool] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

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
    plan = plan_tools(body.tools, body.tool_choice, parallel=body.parallel_tool_calls, template=source)
    structured = body.structured()
    if plan.structured is not None and structured is not None:
        raise ParamError("tool_choice", "A required tool call and another form of the output cannot be combined.")
    top = (body.top_logprobs or 0) if body.logprobs else None
    params = body.sampling(
        context.settings.limits,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=top,
        structured=plan.structured or structured,
    )
    session.check(params, body.priority)
    messages = template_messages(body.messages)
    tools: list[dict[str, Any]] | None = list(plan.tools) or None
    if tools and not takes_tools(source):
        messages, tools = with_tools(messages, tools), None
    check_size("messages", messages, context.settings.limits)
    try:
        generation = await session.model.prepare(
            messages,
            params,
            request_id=session.request_id,
            tools=tools,
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
        await session.start([generation])
    except RequestError as error:
        raise blamed(error, "messages", "tools" if plan.structured is not None else body.form) from error
    return ChatWriter(session, plan, top)
