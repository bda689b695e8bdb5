"""What every route needs, made once when the server starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtk.server.settings import ServerSettings

if TYPE_CHECKING:
    from vtk.runtime import Runtime
    from vtk.server.metrics import Metrics


@dataclass(frozen=True, eq=False)
class ServerContext:
    """Routes are made by functions `router(context) -> APIRouter`; there is no global state beside this."""

    runtime: Runtime
    settings: ServerSettings
    metrics: Metrics
