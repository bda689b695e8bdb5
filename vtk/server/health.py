"""How the server and its models are: probes, what really computes (`/health`), and the version."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from vtk.server.context import ServerContext


def router(context: ServerContext) -> APIRouter:
    """`/health`, `/health/live`, `/health/ready`, `/version`: no key needed but for the last."""
    routes = APIRouter(tags=["health"])
    runtime = context.runtime

    def state() -> str:
        if runtime.is_draining:
            return "draining"
        return "ready" if runtime.is_ready else "starting"

    def answer(body: dict[str, Any]) -> JSONResponse:
        return JSONResponse({"status": state(), **body}, 200 if state() == "ready" else 503)

    @routes.get("/health")
    def health() -> JSONResponse:
        """Every model with the device, the backend and the precision that compute it; 503 until all are ready."""
        return answer({"version": version("vtk-deploy"), "models": [_model(status) for status in runtime.statuses()]})

    @routes.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @routes.get("/health/ready")
    async def ready() -> JSONResponse:
        """Requests are welcome: 200, else 503."""
        return answer({})

    @routes.get("/version")
    async def told_version() -> dict[str, str]:
        """The version of vtk."""
        return {"version": version("vtk-deploy")}

    return routes


def _model(status: Any) -> dict[str, Any]:
    names = ("name", "version", "kind", "task", "state", "reason", "backend", "device", "precision")
    return {name: getattr(status, name) for name in names}
