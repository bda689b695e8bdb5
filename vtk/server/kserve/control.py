"""Loading and unloading models over the network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from vtk.errors import UsageError
from vtk.server.context import ServerContext
from vtk.server.errors import RefusedError
from vtk.server.kserve.request import check_parameters


async def load_model(context: ServerContext, name: str, parameters: Mapping[str, object]) -> None:
    """Load or reload a model of the model folder and wait until it serves.

    Raises NotFoundError, RefusedError where models are not controlled over the network, UsageError when the model
    cannot be loaded: what served under the name still does.
    """
    _check_allowed(context)
    check_parameters(parameters, {}, "a load request")
    status = await asyncio.to_thread(context.runtime.load, name)
    if status.reason:
        raise UsageError(f"'{name}' was not loaded: {status.reason}")


async def unload_model(context: ServerContext, name: str, parameters: Mapping[str, object]) -> None:
    """Take a model out of service; requests that have it are still answered. Raises NotFoundError, RefusedError."""
    _check_allowed(context)
    # No model of this server depends on another, so that either value means the same.
    check_parameters(parameters, {"unload_dependents": bool}, "an unload request")
    await asyncio.to_thread(context.runtime.unload, name)


def _check_allowed(context: ServerContext) -> None:
    if not context.settings.allow_model_control:
        raise RefusedError(403, "model_control_off", "This server does not load or unload models over the network.")
