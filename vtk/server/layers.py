"""A layer around the application, in plain ASGI: streams and disconnects pass through it as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod

from starlette.types import ASGIApp, Receive, Scope, Send


class Layer(ABC):
    """Sees every HTTP request before the application does; the server's start and end pass by."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self.handle if scope["type"] == "http" else self.app
        await handle(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or hand it on to `app`."""
