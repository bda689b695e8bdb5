"""`/v1/vision/detect`, `segment`, `embed`, `classify`: pictures in, results out."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from vtk.errors import VtkError
from vtk.server.disconnect import unless_left
from vtk.server.errors import code_of, headers_of, openai_body, status_of
from vtk.server.pictures import PictureReader
from vtk.server.vision.answers import Answerer, Job, Outcome
from vtk.server.vision.body import Asked, read_body
from vtk.server.vision.choose import class_filter, lease_model, prompts_of, recipe_for
from vtk.server.vision.describe import SUMMARIES, request_body, responses
from vtk.server.vision.options import ClassifyOptions, DetectOptions, EmbedOptions, SegmentOptions, VisionOptions
from vtk.serving.batcher import Ticket

if TYPE_CHECKING:
    from vtk.server.context import ServerContext
    from vtk.serving.vision_model import VisionModel

TASKS: dict[str, type[VisionOptions]] = {
    "detect": DetectOptions,
    "segment": SegmentOptions,
    "embed": EmbedOptions,
    "classify": ClassifyOptions,
}


def router(context: ServerContext, reader: PictureReader | None = None) -> APIRouter:
    """The vision routes. `reader` replaces the one that reaches the network."""
    answerer = Answerer(context.settings, reader or PictureReader(context.settings))
    routes = APIRouter(tags=["vision"])
    for task, kind in TASKS.items():
        routes.add_api_route(
            f"/v1/vision/{task}",
            _endpoint(context, answerer, task, kind),
            methods=["POST"],
            name=task,
            summary=SUMMARIES[task],
            response_model=None,
            responses=responses(task),
            openapi_extra={"requestBody": request_body(kind)},
        )
    return routes


def _endpoint(
    context: ServerContext, answerer: Answerer, task: str, kind: type[VisionOptions]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        started = time.monotonic()
        asked = await read_body(request, kind, max_pictures=context.settings.limits.max_pictures)
        with lease_model(context.runtime, asked.options.model, task) as model:
            job = _job(model, asked, started)
            outcomes = await unless_left(request, answerer.answer(job, asked.sources))
        return await to_thread.run_sync(_respond, request, job, outcomes, started)

    return answer


def _job(model: VisionModel, asked: Asked[VisionOptions], started: float) -> Job:
    options, manifest = asked.options, model.bundle.manifest
    prompts = prompts_of(options, manifest.post, model.name, len(asked.sources))
    deadline = None if options.timeout_ms is None else started + options.timeout_ms / 1000
    return Job(
        model=model,
        options=options,
        ticket=Ticket(options.priority, deadline),
        post=recipe_for(options, manifest.post, model.name),
        class_filter=class_filter(options, manifest.labels),
        prompts=prompts,
    )


def _respond(request: Request, job: Job, outcomes: Sequence[Outcome], started: float) -> Response:
    """200 when at least one picture was answered; one annotated picture is the body itself."""
    if len(outcomes) == 1 and (drawing := outcomes[0].drawing) is not None:
        return Response(drawing.data, media_type=drawing.media_type)
    failure = None if any(outcome.error is None for outcome in outcomes) else _worst(outcomes)
    body = {
        **({} if failure is None else openai_body(failure)),
        "model": job.model.name,
        "version": job.model.version,
        "task": job.model.bundle.manifest.task,
        "seconds": time.monotonic() - started,
        "results": [_result(outcome) for outcome in outcomes],
    }
    content = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    if failure is None:
        return Response(content, media_type="application/json")
    request.scope.setdefault("state", {})["error_code"] = code_of(failure)
    return Response(content, status_of(failure), headers_of(failure), "application/json")


def _worst(outcomes: Sequence[Outcome]) -> VtkError:
    """Of failures only, the one with the highest status: what may succeed on another try before what never will."""
    return max((outcome.error for outcome in outcomes if outcome.error is not None), key=status_of)


def _result(outcome: Outcome) -> dict[str, object]:
    if outcome.drawing is None:
        return outcome.entry
    data = base64.b64encode(outcome.drawing.data).decode("ascii")
    return {**outcome.entry, "annotated": {"media_type": outcome.drawing.media_type, "base64": data}}
