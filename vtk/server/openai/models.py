"""`/v1/models`: what is served, and the hashes that prove which weights it has."""

from __future__ import annotations

from fastapi import APIRouter

from vtk.errors import NotFoundError
from vtk.runtime import ModelStatus
from vtk.server.context import ServerContext
from vtk.server.openai.responses import ERRORS, ModelCard, ModelList, PromptLimits
from vtk.server.openai.route import OpenAIRoute
from vtk.server.vision.options import MAX_PROMPTS
from vtk.serving.segment_model import SegmentModel
from vtk.serving.vision_model import VisionModel


def router(context: ServerContext) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["OpenAI"], route_class=OpenAIRoute)

    @routes.get("", response_model=ModelList)
    async def list_models() -> ModelList:
        """Every model that is ready, language and vision, under the name that requests give as `model`."""
        return {"object": "list", "data": _cards(context)}

    @routes.get("/{model}", response_model=ModelCard, responses=ERRORS)
    async def retrieve_model(model: str) -> ModelCard:
        """One model that is ready."""
        for card in _cards(context):
            if card["id"] == model:
                return card
        raise NotFoundError(f"No model named {model[:80]!r} is ready.", hint="GET /v1/models lists those that are.")

    return routes


def _cards(context: ServerContext) -> list[ModelCard]:
    """One a name: its newest ready version."""
    newest = {status.name: status for status in context.runtime.statuses() if status.state == "ready"}
    return [_card(context, status) for status in newest.values()]


def _card(context: ServerContext, status: ModelStatus) -> ModelCard:
    card: ModelCard = {
        "id": status.name,
        "object": "model",
        "created": int(status.created),
        "owned_by": "vtk",
        "kind": status.kind,
        "task": status.task,
        "version": status.version,
        "backend": status.backend,
        "device": status.device,
        "precision": status.precision,
        "source_sha256": status.source_sha256,
        "tensor_digest": status.tensor_digest,
    }
    if status.kind == "llm":
        with context.runtime.language(status.name) as model:
            card["max_model_len"] = model.max_model_len
    if status.task == "segment":
        with context.runtime.vision(status.name) as vision:
            card["prompts"] = _prompt_limits(vision)
    return card


def _prompt_limits(model: VisionModel) -> PromptLimits:
    assert isinstance(model, SegmentModel)
    return {
        "max_prompts": MAX_PROMPTS,
        "max_tokens": model.parts.max_tokens,
        "max_boxes": model.parts.max_boxes,
        "score_threshold": model.bundle.manifest.post.score_threshold,
    }
