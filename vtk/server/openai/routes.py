"""Every route of OpenAI's protocol, and vLLM's beside it."""

from __future__ import annotations

from fastapi import APIRouter

from vtk.server.context import ServerContext
from vtk.server.openai import chat, completions, embeddings, models, tokens


def router(context: ServerContext) -> APIRouter:
    """`/v1/…`, `/tokenize` and `/detokenize`."""
    routes = APIRouter()
    for module in (chat, completions, embeddings, models, tokens):
        routes.include_router(module.router(context))
    return routes
