"""What each method of the gRPC service answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from vtk.server.context import ServerContext
from vtk.server.kserve.control import load_model, unload_model
from vtk.server.kserve.describe import is_model_ready, model_config, model_metadata, repository_index, server_metadata
from vtk.server.kserve.grpc_codec import read_message, read_parameters, write_message
from vtk.server.kserve.infer import infer
from vtk.server.kserve.messages import MESSAGES
from vtk.server.kserve.model_statistics import model_statistics

# From a message of the method's request type to one of its response type.
Method = Callable[[Any], Awaitable[Any]]


def methods(context: ServerContext) -> Mapping[str, Method]:
    """The methods by their names in the service. They raise VtkErrors."""
    return {**_about(context), **_repository(context), "ModelInfer": _infer(context)}


def _about(context: ServerContext) -> Mapping[str, Method]:
    async def live(_: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ready(_: Any) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=context.runtime.is_ready)

    async def metadata(_: Any) -> Any:
        return MESSAGES["ServerMetadataResponse"](**server_metadata())

    async def is_ready(asked: Any) -> Any:
        return MESSAGES["ModelReadyResponse"](ready=bool(is_model_ready(context, asked.name, asked.version)))

    async def model(asked: Any) -> Any:
        return MESSAGES["ModelMetadataResponse"](**model_metadata(context, asked.name, asked.version))

    async def config(asked: Any) -> Any:
        values = {"config": model_config(context, asked.name, asked.version)}
        return ParseDict(values, MESSAGES["ModelConfigResponse"]())

    async def statistics(asked: Any) -> Any:
        values = model_statistics(context, asked.name, asked.version)
        return MESSAGES["ModelStatisticsResponse"](**values)

    return {
        "ServerLive": live,
        "ServerReady": ready,
        "ServerMetadata": metadata,
        "ModelReady": is_ready,
        "ModelMetadata": model,
        "ModelConfig": config,
        "ModelStatistics": statistics,
    }


def _repository(context: ServerContext) -> Mapping[str, Method]:
    async def index(asked: Any) -> Any:
        return MESSAGES["RepositoryIndexResponse"](models=repository_index(context, ready=asked.ready))

    async def load(asked: Any) -> Any:
        await load_model(context, asked.model_name, read_parameters(asked.parameters))
        return MESSAGES["RepositoryModelLoadResponse"]()

    async def unload(asked: Any) -> Any:
        await unload_model(context, asked.model_name, read_parameters(asked.parameters))
        return MESSAGES["RepositoryModelUnloadResponse"]()

    return {"RepositoryIndex": index, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}


def _infer(context: ServerContext) -> Method:
    async def answer(asked: Any) -> Any:
        request = await asyncio.to_thread(read_message, asked)
        return await asyncio.to_thread(write_message, await infer(context, request))

    return answer
