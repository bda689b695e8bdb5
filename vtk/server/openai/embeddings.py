"""`/v1/embeddings`: texts by a language model, pictures by an embedding bundle."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from vtk.errors import RequestError
from vtk.postprocess.results import Embeddings
from vtk.preprocess.decode import DecodeOptions
from vtk.server.context import ServerContext
from vtk.server.disconnect import cancel, unless_left
from vtk.server.openai.answering import JSON
from vtk.server.openai.errors import ParamError
from vtk.server.openai.generation_fields import check_size
from vtk.server.openai.responses import ERRORS, EmbeddingItem, EmbeddingList, EmbeddingsUsage
from vtk.server.openai.route import OpenAIRoute
from vtk.server.openai.session import blamed
from vtk.server.openai.strict import Body, Items, TokenIds
from vtk.server.pictures import PictureReader
from vtk.server.tracing import add_past_stages
from vtk.serving.vision_model import VisionModel

if TYPE_CHECKING:
    from vtk.serving.language_model import LanguageModel

Vector = npt.NDArray[np.float32]


class EmbeddingRequest(Body):
    """Inputs to embed: texts or token ids for a language model, pictures (base64, data URLs) for a vision model.

    The vectors of texts have length 1, those of pictures are the model's own summary vectors as they are.
    """

    NOT_OFFERED: ClassVar = {"truncate_prompt_tokens": -1, "add_special_tokens": True, "priority": 0}

    model: str
    input: str | TokenIds | Annotated[Items[str], Field(min_length=1)] | Annotated[Items[TokenIds], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """Each input by itself."""
        if isinstance(self.input, str) or isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)


def router(context: ServerContext) -> APIRouter:
    """The route."""
    routes = APIRouter(tags=["OpenAI"], route_class=OpenAIRoute)
    reader = PictureReader(context.settings)

    @routes.post("/v1/embeddings", response_model=EmbeddingList, responses=ERRORS)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """One vector for each input, in their order."""
        if body.dimensions is not None:
            raise ParamError("dimensions", "vtk does not shorten embeddings.", code="unsupported_parameter")
        if _is_vision(context, body.model):
            with context.runtime.vision(body.model) as vision:
                vectors = await unless_left(request, _embed_pictures(context, vision, reader, body))
            return JSON(_answer(body, vectors, num_tokens=0))
        with context.runtime.language(body.model) as language:
            ids = await _token_ids(context, language, body)
            vectors = await unless_left(request, _embed_all(language, ids))
        return JSON(_answer(body, vectors, num_tokens=sum(map(len, ids))))

    return routes


def _is_vision(context: ServerContext, name: str) -> bool:
    return any(status.name == name and status.kind == "vision" for status in context.runtime.statuses())


async def _token_ids(context: ServerContext, model: LanguageModel, body: EmbeddingRequest) -> list[list[int]]:
    limits = context.settings.limits
    check_size("input", body.input, limits)
    if len(body.inputs) > limits.max_queued_requests:
        raise ParamError("input", f"At most {limits.max_queued_requests} inputs, got {len(body.inputs)}.")

    def encode() -> list[list[int]]:
        return [model.tokenizer.encode(item) if isinstance(item, str) else item for item in body.inputs]

    return await asyncio.to_thread(encode)


async def _embed_all(model: LanguageModel, ids: list[list[int]]) -> list[Vector]:
    try:
        return await _together([model.embed(item) for item in ids])
    except RequestError as error:
        raise blamed(error, "input") from error


async def _embed_pictures(
    context: ServerContext, model: VisionModel, reader: PictureReader, body: EmbeddingRequest
) -> list[Vector]:
    limits = context.settings.limits
    if model.bundle.manifest.task != "embed":
        raise ParamError("model", f"'{body.model}' does not embed: its task is {model.bundle.manifest.task}.")
    if len(body.inputs) > limits.max_pictures:
        raise ParamError("input", f"At most {limits.max_pictures} pictures, got {len(body.inputs)}.")
    budget = reader.budget()

    async def one(item: str | list[int]) -> Vector:
        if not isinstance(item, str):
            raise ParamError("input", "A vision model embeds pictures, as base64 or data URLs, not token ids.")
        picture = await reader.read(item, budget)
        answer = await model.answer(picture, decode_options=DecodeOptions(max_pixels=limits.max_pixels))
        add_past_stages(answer.seconds, {"model": model.name})
        assert isinstance(answer.result, Embeddings), "an embed bundle gives embeddings"
        return answer.result.pooled

    return await _together([one(item) for item in body.inputs])


async def _together(work: Sequence[Coroutine[Any, Any, Vector]]) -> list[Vector]:
    """All results; when one fails, the others are dropped."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel(*tasks)


def _answer(body: EmbeddingRequest, vectors: list[Vector], *, num_tokens: int) -> EmbeddingList:
    data: list[EmbeddingItem] = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage: EmbeddingsUsage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


def _encoded(vector: Vector, encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
