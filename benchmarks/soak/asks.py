"""One request and the answer that it must get, from anyone, at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import tritonclient.grpc.aio as triton
from soak.judge import difference, refused_pictures
from soak.wire import Reply, Wire, request_bytes
from tritonclient.utils import InferenceServerException

ANSWER_SECONDS = 240
SLOW_PAUSE = 0.02
JSON = {"Content-Type": "application/json"}


class WrongError(Exception):
    """An answer that is not right, or none."""


class RefusedError(Exception):
    """The server has too much to do, and said so as it should."""


@dataclass(frozen=True)
class Target:
    """Where the server listens."""

    port: int
    grpc_port: int


@dataclass(frozen=True)
class HttpAsk:
    """read: what of an answer is compared. status: that the answer must have, if it is no refusal for `may_refuse`."""

    kind: str
    path: str
    body: bytes
    read: Callable[[Reply], Any]
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    method: str = "POST"
    status: int = 200
    may_refuse: frozenset[int] = frozenset({429})
    weight: float = 1.0

    @property
    def wire(self) -> bytes:
        return request_bytes(self.method, self.path, self.body, self.headers)

    async def answer(self, target: Target, *, slow: bool = False) -> Any:
        """What is compared. Raises RefusedError, WrongError."""
        try:
            reply = await asyncio.wait_for(self._exchange(target, slow), ANSWER_SECONDS)
        except (OSError, EOFError) as error:
            raise WrongError(f"no answer: {error!r}") from error
        except asyncio.TimeoutError:
            raise WrongError(f"no answer within {ANSWER_SECONDS} s") from None
        if reply.status in self.may_refuse - {self.status}:
            check_refusal(reply)
            raise RefusedError(f"{reply.status}")
        if reply.status != self.status:
            raise WrongError(f"status {reply.status} instead of {self.status}: {reply.body[:300]!r}")
        try:
            return self.read(reply)
        except Exception as error:
            raise WrongError(f"{error!r} in {reply.body[:300]!r}") from error

    async def _exchange(self, target: Target, slow: bool) -> Reply:
        wire = await Wire.open(target.port, slow=slow)
        sending = asyncio.ensure_future(wire.send(self.wire))
        try:
            # What is refused by its head is answered before its body has been taken.
            return await wire.read(pause=SLOW_PAUSE if slow else 0.0)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            wire.leave()

    async def leave(self, target: Target, rng: random.Random) -> None:
        """Begin, and close the connection in the request, before the answer, or in it."""
        data = self.wire
        try:
            wire = await Wire.open(target.port)
            try:
                stage = rng.choice(("head", "body", "wait", "read"))
                head = data.index(b"\r\n\r\n")
                parts = {"head": rng.randrange(head), "body": rng.randrange(head, len(data))}
                await wire.send(data[: parts.get(stage)])
                await asyncio.sleep(rng.expovariate(2.0))
                if stage == "read":
                    await asyncio.wait_for(wire.read_some(rng.randrange(1, 4000)), ANSWER_SECONDS)
            finally:
                wire.leave()
        except OSError:
            return  # the server may have closed first


def check_refusal(reply: Reply) -> None:
    """A reason for people, and for 429 the time of another try."""
    error = reply.json()["error"]
    if not (error if isinstance(error, str) else error["message"]):
        raise WrongError(f"a refusal without a reason: {reply.body!r}")
    if reply.status == 429 and not reply.headers.get("retry-after", "").isdigit():
        raise WrongError("429 without Retry-After")


@dataclass(frozen=True)
class GrpcAsk:
    """KServe's ModelInfer over a channel of its own. code: the status of the error that it must get, if any."""

    kind: str
    model: str
    inputs: list[Any]
    read: Callable[[Any], Any]
    code: grpc.StatusCode | None = None
    weight: float = 1.0

    async def answer(self, target: Target, *, slow: bool = False) -> Any:
        """What is compared. Raises RefusedError, WrongError."""
        try:
            async with triton.InferenceServerClient(f"127.0.0.1:{target.grpc_port}") as client:
                found = self.read(await client.infer(self.model, self.inputs, client_timeout=ANSWER_SECONDS))
        except InferenceServerException as error:
            if error.status() == str(self.code):
                return error.status()
            if error.status() == str(grpc.StatusCode.RESOURCE_EXHAUSTED):
                raise RefusedError("RESOURCE_EXHAUSTED") from None
            raise WrongError(f"{error.status()}: {error.message()}") from error
        if self.code is not None:
            raise WrongError(f"an answer instead of {self.code}")
        return found

    async def leave(self, target: Target, rng: random.Random) -> None:
        """Cancel the call after a while."""
        task = asyncio.ensure_future(self.answer(target))
        await asyncio.wait({task}, timeout=rng.expovariate(4.0))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


Ask = HttpAsk | GrpcAsk


@dataclass(frozen=True)
class Recorded:
    """An ask with the answer that it got when nobody else asked."""

    ask: Ask
    expected: Any

    async def check(self, target: Target, *, slow: bool = False) -> None:
        """Ask again. Raises RefusedError, WrongError.

        Each picture is answered by itself: some of many may be refused, the others must be right all the same.
        """
        found, expected = await self.ask.answer(target, slow=slow), self.expected
        if refused := refused_pictures(found):
            results = [refused.get(index, result) for index, result in enumerate(expected["results"])]
            expected = {**expected, "results": results}
        if text := difference(found, expected):
            raise WrongError(text)
        if refused:
            raise RefusedError(f"{len(refused)} pictures of {len(found['results'])}")


async def record(asks: list[Ask], target: Target) -> list[Recorded]:
    """One after the other. Raises WrongError."""
    return [Recorded(ask, await _persistently(ask, target)) for ask in asks]


async def _persistently(ask: Ask, target: Target) -> Any:
    """A request with a deadline may be late on a machine with other work."""
    while True:
        with suppress(RefusedError):
            return await ask.answer(target)
