"""Deltas as chat choices: messages and tool calls, whole or in chunks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta
from vtk.llm_serving.results import Completion as Output
from vtk.llm_serving.results import GenerationResult
from vtk.server.openai.logprobs import ChatLogprobs, chat_logprobs
from vtk.server.openai.responses import ChatChoice, ChatCompletion, ChatMessage, FunctionBlock, ToolCallBlock
from vtk.server.openai.session import Session
from vtk.server.openai.tool_reader import CallPart, Part, ToolReader
from vtk.server.openai.tools import ToolPlan

_PLAIN_END = '},"logprobs":null,"finish_reason":null}'


class ChatWriter:
    """Writes the n choices of one conversation. num_logprobs: alternatives to report, None for no log-probabilities."""

    object_name = "chat.completion.chunk"

    def __init__(self, session: Session, plan: ToolPlan, num_logprobs: int | None) -> None:
        self._session = session
        self._plan = plan
        self._num_logprobs = num_logprobs
        self._readers = [ToolReader(plan) for _ in range(session.generations[0].params.n)]

    def opening(self) -> Iterator[str]:
        """One chunk with the role for each choice."""
        for index in range(len(self._readers)):
            yield _choice(index, {"role": "assistant", "content": ""})

    def choices(self, which: int, delta: Delta) -> Iterator[str]:
        """What the delta adds; nothing while a tool call is not understood yet."""
        reader, index = self._readers[delta.index], delta.index
        if reader.is_plain and self._num_logprobs is None and delta.finish_reason is None:
            if delta.text:
                text = json.dumps(delta.text, ensure_ascii=False)
                yield f'{{"index":{index},"delta":{{"content":{text}{_PLAIN_END}'
            return
        parts = reader.push(delta.text)
        if delta.finish_reason is not None:
            parts += reader.finish()
        logprobs = self._logprobs(delta)
        for part in parts or ([""] if logprobs is not None else []):
            yield _choice(index, _delta(part), logprobs)
            logprobs = None
        if delta.finish_reason is not None:
            reason = self._reason(delta.finish_reason.value, reader)
            yield _choice(index, {}, finish_reason=reason, stop_reason=delta.stop_reason)

    def whole(self, results: Sequence[GenerationResult]) -> ChatCompletion:
        """The answer when everything has come."""
        session = self._session
        return {
            "id": session.request_id,
            "object": "chat.completion",
            "created": session.created,
            "model": session.name,
            "choices": [self._choice(output) for output in results[0].outputs],
            "usage": session.usage(),
        }

    def _choice(self, output: Output) -> ChatChoice:
        reader = ToolReader(self._plan)
        parts = [*reader.push(output.text), *reader.finish()]
        count = self._num_logprobs
        tokenizer = self._session.model.tokenizer
        return {
            "index": output.index,
            "message": _message(parts),
            "logprobs": None if count is None else chat_logprobs(output.logprobs or (), tokenizer, count),
            "finish_reason": self._reason(output.finish_reason, reader),
            "stop_reason": output.stop_reason,
        }

    def _logprobs(self, delta: Delta) -> ChatLogprobs | None:
        if self._num_logprobs is None or not delta.tokens:
            return None
        return chat_logprobs(delta.tokens, self._session.model.tokenizer, self._num_logprobs)

    def _reason(self, reason: str, reader: ToolReader) -> str:
        """As OpenAI says it: a call that was forced by name ends with `stop`."""
        called = reader.num_calls > 0 and self._plan.style != "arguments"
        return "tool_calls" if called and reason == FinishReason.STOP.value else reason


def _choice(
    index: int,
    delta: dict[str, Any],
    logprobs: ChatLogprobs | None = None,
    *,
    finish_reason: str | None = None,
    stop_reason: str | int | None = None,
) -> str:
    choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    if finish_reason is not None:
        choice["stop_reason"] = stop_reason
    return json.dumps(choice, ensure_ascii=False, separators=(",", ":"))


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"content": part}
    call: dict[str, Any] = {"index": part.index, "function": {"arguments": part.arguments}}
    if part.name is not None:
        call |= {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}
    return {"tool_calls": [call]}


def _message(parts: Sequence[Part]) -> ChatMessage:
    content = "".join(part for part in parts if isinstance(part, str))
    calls: list[ToolCallBlock] = []
    for part in parts:
        if isinstance(part, CallPart) and part.name is not None:
            function: FunctionBlock = {"name": part.name, "arguments": part.arguments}
            calls.append({"id": part.id or "", "type": "function", "function": function})
        elif isinstance(part, CallPart):
            calls[part.index]["function"]["arguments"] += part.arguments
    message: ChatMessage = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
    if calls:
        message["tool_calls"] = calls
    return message
