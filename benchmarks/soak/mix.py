"""All that the clients ask for: texts whose greedy tokens are no near ties, pictures, and what must be refused."""

from __future__ import annotations

import base64
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc
import tritonclient.http
from soak import judge
from soak.asks import Ask, GrpcAsk, HttpAsk, Target
from soak.wire import Reply

CHAT, COMPLETE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
DETECT = "/v1/vision/detect"
# In another batch the sums of a logit come in another order: a token that wins by less than this may lose there.
TIE_MARGIN = 0.05
MAX_TOKENS = 12
QUESTIONS = (
    "What is the capital of France?", "Name the planets of the solar system.", "Why is the sky blue?",
    "Write a poem about the sea.", "How does a bicycle stay upright?", "Count from one to ten.",
)  # fmt: skip
FILLER = "The quick brown fox jumps over the lazy dog near the old stone bridge in the valley. "
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["place", "sure"],
    "properties": {"place": {"enum": ["city", "river"]}, "sure": {"type": "boolean"}},
}  # fmt: skip
TOOL = {
    "name": "weather", "description": "Weather of a city",
    "parameters": {
        "type": "object", "additionalProperties": False, "required": ["city"],
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
    },
}  # fmt: skip


class Mix:
    """llm, detector, embedder: names of served models. pictures: files with objects that the detector knows."""

    def __init__(self, target: Target, *, llm: str, detector: str, embedder: str, pictures: list[Path]) -> None:
        self._target = target
        self._llm = llm
        self._detector = detector
        self._embedder = embedder
        self._pictures = [path.read_bytes() for path in pictures]

    async def asks(self) -> list[Ask]:
        """Everything, each with its weight. Asks the server for what is steady."""
        texts = [ask async for ask in self._texts()]
        pictures = [ask async for ask in self._detections()]
        return [*texts, *self._structured(), *pictures, *self._embeddings(), *self._kserve(), *self._bad(), *_polls()]

    async def _texts(self) -> Any:
        long = FILLER * 40
        for question in (*QUESTIONS, f"{long} What jumps over the dog?"):
            messages = [{"role": "user", "content": question}]
            tokens = await self._steady(CHAT, {"messages": messages})
            body = {"messages": messages, "temperature": 0, "max_tokens": tokens}
            kind = "long prompt" if question.startswith(long) else "chat"
            weight = 1.0 if kind == "long prompt" else 1.5
            yield self._text(f"{kind}, streamed", CHAT, body, stream=True, weight=2 * weight)
            yield self._text(kind, CHAT, {**body, "priority": -1, "cache_salt": "soak"}, weight=weight)
        for prompt in ("Once upon a time", "The three primary colors are"):
            tokens = await self._steady(COMPLETE, {"prompt": prompt})
            body = {"prompt": prompt, "temperature": 0, "max_tokens": tokens}
            yield self._text("completion", COMPLETE, body)
            yield self._text("completion, streamed", COMPLETE, body, stream=True)

    def _text(self, kind: str, path: str, body: dict[str, Any], *, stream: bool = False, weight: float = 1.0) -> Ask:
        read = judge.streamed_text if stream else judge.whole_text
        return HttpAsk(kind, path, self._json({**body, "stream": stream}), read, weight=weight)

    async def _steady(self, path: str, body: dict[str, Any]) -> int:
        """How many tokens are sure to come out the same."""
        wanted = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
        data = self._json({**body, **wanted, "temperature": 0, "max_tokens": MAX_TOKENS})
        choice = (await HttpAsk("", path, data, Reply.json).answer(self._target))["choices"][0]
        if path == CHAT:
            tops = [[item["logprob"] for item in token["top_logprobs"]] for token in choice["logprobs"]["content"]]
        else:
            tops = [list(token.values()) for token in choice["logprobs"]["top_logprobs"]]
        margins = [best - second for best, second in (sorted(top, reverse=True)[:2] for top in tops)]
        sure = next((index for index, margin in enumerate(margins) if margin < TIE_MARGIN), len(margins))
        return max(1, sure)

    def _structured(self) -> Iterator[Ask]:
        body = {"messages": [{"role": "user", "content": "Is Paris a city?"}], "temperature": 0, "max_tokens": 200}
        schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
        yield HttpAsk("json schema", CHAT, self._json({**body, "response_format": schema}), judge.written_json)
        body["messages"] = [{"role": "user", "content": "What is the weather in Paris?"}]
        one = {"type": "function", "function": {"name": "weather"}}
        tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": one}
        yield HttpAsk("tool", CHAT, self._json({**body, **tools}), judge.tool_calls)

    async def _detections(self) -> Any:
        sure = [await self._threshold(picture) for picture in self._pictures]
        for picture, threshold in zip(self._pictures, sure, strict=True):
            body = {"images": [_text_of(picture)], "model": self._detector, "score_threshold": threshold}
            yield HttpAsk("picture", DETECT, _json(body), judge.plain)
        one, threshold = self._pictures[0], sure[0]
        for batch in (2, 6):
            images = [_text_of(one) for _ in range(batch)]
            images.insert(1, _text_of(one[: len(one) // 2]))
            body = {"images": images, "model": self._detector, "score_threshold": threshold}
            yield HttpAsk("pictures, one damaged", DETECT, _json(body), judge.plain, weight=2.0)
        form, headers = _form({"model": self._detector, "score_threshold": str(threshold)}, one)
        yield HttpAsk("picture as a form", DETECT, form, judge.plain, headers, weight=2.0)
        form, headers = _form({"model": self._detector, "response": "annotated"}, one)
        yield HttpAsk("picture, annotated", DETECT, form, judge.picture, headers)
        late = {"images": [_text_of(one)], "model": self._detector, "score_threshold": threshold, "timeout_ms": 300}
        yield HttpAsk("picture with a deadline", DETECT, _json(late), judge.plain, may_refuse=frozenset({408, 429}))

    async def _threshold(self, picture: bytes) -> float:
        """In the widest gap between the scores of the picture, since one at the threshold may fall on either side."""
        body = {"images": [_text_of(picture)], "model": self._detector, "score_threshold": 0.05}
        answer = await HttpAsk("", DETECT, _json(body), Reply.json).answer(self._target)
        scores = sorted({0.2, 0.8, *(item["score"] for item in answer["results"][0]["detections"])})
        inner = [score for score in scores if 0.2 <= score <= 0.8]
        low, high = max(itertools.pairwise(inner), key=lambda pair: pair[1] - pair[0])
        return float(low + high) / 2

    def _embeddings(self) -> Iterator[Ask]:
        body = {"model": self._llm, "input": ["a small boat", "the open sea"]}
        yield HttpAsk("text embeddings", EMBED, _json(body), judge.plain, weight=2.0)
        body = {"model": self._embedder, "input": [_text_of(self._pictures[0])]}
        yield HttpAsk("picture embedding", EMBED, _json(body), judge.plain)
        images = [_text_of(picture) for picture in self._pictures[:2]]
        yield HttpAsk("picture embeddings", "/v1/vision/embed", _json({"images": images}), judge.plain)

    def _kserve(self) -> Iterator[Ask]:
        for index, kind in enumerate(("kserve HTTP", "kserve gRPC")):
            library = (tritonclient.http, tritonclient.grpc)[index]
            pictures = np.array(self._pictures[:2], dtype=object)
            tensor = library.InferInput("image", [2], "BYTES")
            tensor.set_data_from_numpy(pictures)
            damaged = library.InferInput("image", [1], "BYTES")
            damaged.set_data_from_numpy(np.array([self._pictures[0][:200]], dtype=object))
            if index:
                yield GrpcAsk(kind, self._embedder, [tensor], _arrays)
                yield GrpcAsk(f"{kind}, bad", self._detector, [damaged], _arrays, grpc.StatusCode.INVALID_ARGUMENT)
                continue
            for model, given, status in ((self._embedder, tensor, 200), (self._detector, damaged, 400)):
                data, length = tritonclient.http.InferenceServerClient.generate_request_body([given])
                headers = {"Inference-Header-Content-Length": str(length), "Content-Type": "application/octet-stream"}
                read = _binary if status == 200 else judge.reason
                name = kind if status == 200 else f"{kind}, bad"
                yield HttpAsk(name, f"/v2/models/{model}/infer", data, read, headers, status=status)

    def _bad(self) -> Iterator[Ask]:
        message = [{"role": "user", "content": "hi"}]
        noise = random.Random(0).randbytes(3000)
        cases: list[tuple[str, bytes, int]] = [
            (CHAT, b"{", 400),
            (CHAT, b"\xff\xfe", 400),
            (CHAT, self._json({"messages": "hi"}), 400),
            (CHAT, self._json({"messages": message, "max_tokens": -1}), 400),
            (CHAT, self._json({"messages": message, "temperature": 9}), 400),
            (CHAT, self._json({"messages": message, "n": 10_000}), 400),
            (CHAT, _json({"messages": message, "model": "../../etc/passwd"}), 404),
            (CHAT, self._json({"messages": message, "unknown_field": 1}), 400),
            (COMPLETE, self._json({"prompt": [10**9]}), 400),
            (EMBED, self._json({"input": []}), 400),
            (DETECT, _json({"images": ["not a picture"]}), 400),
            (DETECT, _json({"images": [_text_of(noise)]}), 400),
            (DETECT, _json({"images": [_text_of(self._pictures[0][:500])]}), 400),
            (DETECT, _json({"images": ["http://127.0.0.1/"]}), 400),
            (f"/v2/models/{self._detector}/infer", b'{"inputs":[]}', 400),
            ("/v2/models/none/infer", b'{"inputs":[]}', 404),
        ]
        for path, body, status in cases:
            yield HttpAsk("bad body", path, body, judge.reason, status=status, weight=0.4)
        for text, status in (("word " * 30_000, 400), ("word " * 5_000, 400), ("a" * (5 << 20), 413)):
            huge = self._json({"messages": [{"role": "user", "content": text}]})
            yield HttpAsk("huge prompt", CHAT, huge, judge.reason, status=status)

    def _json(self, body: dict[str, Any]) -> bytes:
        return _json({"model": self._llm, **body})


def _polls() -> Iterator[Ask]:
    for path, read in (("/metrics", lambda reply: b"vllm:num_requests_running" in reply.body),
                       ("/v1/models", lambda reply: sorted(card["id"] for card in reply.json()["data"])),
                       ("/health", lambda reply: reply.json()["status"]),
                       ("/v2/health/ready", Reply.json)):  # fmt: skip
        yield HttpAsk("poll", path, b"", read, {}, "GET", weight=0.7)


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _form(fields: dict[str, str], picture: bytes) -> tuple[bytes, dict[str, str]]:
    line = "--soak-boundary\r\nContent-Disposition: form-data; name="
    parts = "".join(f'{line}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
    body = f'{parts}{line}"images"; filename="a"\r\n\r\n'.encode() + picture + b"\r\n--soak-boundary--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=soak-boundary"}


def _arrays(result: Any) -> Any:
    response = result.get_response()
    names = [item["name"] for item in response["outputs"]] if isinstance(response, dict) else [
        item.name for item in response.outputs
    ]  # fmt: skip
    return {name: result.as_numpy(name).tolist() for name in names}


def _binary(reply: Reply) -> Any:
    length = int(reply.headers["inference-header-content-length"])
    return _arrays(tritonclient.http.InferenceServerClient.parse_response_body(reply.body, header_length=length))
