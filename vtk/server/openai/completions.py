"""`/v1/completions`: plain prompts, one or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from vtk.errors import RequestError
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.server.context import ServerContext
from vtk.server.openai.answering import answer
from vtk.server.openai.completion_writer import CompletionWriter
from vtk.server.openai.errors import ParamError
from vtk.server.openai.generation_fields import COMMON_NOT_OFFERED, GenerationFields, StreamOptions, check_size
from vtk.server.openai.responses import ERRORS, Completion
from vtk.server.openai.route import OpenAIRoute
from vtk.server.openai.session import Session, blamed
from vtk.server.openai.strict import Items, TokenIds
from vtk.server.settings import Limits


class CompletionRequest(GenerationFields):
    """Prompts to continue: a text, token ids, or a list of either."""

    NOT_OFFERED: ClassVar = {**COMMON_NOT_OFFERED, "add_special_tokens": True, "prompt_embeds": [], "suffix": ""}

    prompt: (
        str | TokenIds | Annotated[Items[str], Field(min_length=1)] | Annotated[Items[TokenIds], Field(min_length=1)]
    )
    max_tokens: Annotated[int, Field(ge=0)] = 16
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @property
    def is_echo_only(self) -> bool:
        """Nothing is wanted but the prompt and its log-probabilities."""
        return self.echo and self.max_tokens == 0

    @model_validator(mode="after")
    def _check_output(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo:
            raise ParamError("max_tokens", "'max_tokens' must be at least 1, or 0 with 'echo'.")
        return self


def router(context: ServerContext) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"], route_class=OpenAIRoute)

    @routes.post("/v1/completions", response_model=Completion, responses=ERRORS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continue one prompt or many; with `stream`, as server-sent events of chunks."""

        async def start(session: Session) -> CompletionWriter:
            return await _start(context.settings.limits, session, body)

        options = (body.stream_options or StreamOptions()) if body.stream else None
        return await answer(context, request, prefix="cmpl", model=body.model, options=options, start=start)

    return routes


async def _start(limits: Limits, session: Session, body: CompletionRequest) -> CompletionWriter:
    params = body.sampling(
        limits,
        max_tokens=max(1, body.max_tokens),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        structured=body.structured(),
    )
    session.check(params, body.priority)
    check_size("prompt", body.prompt, limits)
    if len(body.prompts) > limits.max_queued_requests:
        raise ParamError("prompt", f"At most {limits.max_queued_requests} prompts, got {len(body.prompts)}.")
    generations = [await _prepare(session, body, params, which) for which in range(len(body.prompts))]
    await session.start(generations, is_output_wanted=not body.is_echo_only)
    return CompletionWriter(
        session,
        echoed=_texts(body.prompts, session) if body.echo else None,
        is_echo_only=body.is_echo_only,
        num_logprobs=body.logprobs,
    )


async def _prepare(session: Session, body: CompletionRequest, params: SamplingParams, which: int) -> Generation:
    try:
        return await session.model.prepare(
            body.prompts[which],
            params,
            request_id=f"{session.request_id}-{which}",
            priority=body.priority,
            cache_salt=body.cache_salt,
        )
    except RequestError as error:
        raise blamed(error, "prompt", body.form, which=which if len(body.prompts) > 1 else None) from error


def _texts(prompts: Sequence[str | list[int]], session: Session) -> list[str]:
    """What is echoed: a text as it came, token ids as the text that they mean."""
    return [prompt if isinstance(prompt, str) else session.model.tokenizer.decode(prompt) for prompt in prompts]
