"""From a request to the raw outputs of a model, batched together with other clients' rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from vtk.bundle import Label
from vtk.engines.base import Array
from vtk.errors import ImageError, UsageError
from vtk.predictor import Row
from vtk.preprocess.decode import DecodeOptions
from vtk.server.context import ServerContext
from vtk.server.disconnect import cancel
from vtk.server.kserve.describe import PICTURES, inputs_of, outputs_of
from vtk.server.kserve.request import InferRequest, InferResponse, RequestedOutput, RequestOptions
from vtk.server.kserve.tensors import InputTensor, OutputTensor, check_input, read_bytes, read_floats
from vtk.server.settings import Limits
from vtk.serving.batcher import Ticket
from vtk.serving.segment_model import SegmentModel
from vtk.serving.vision_model import VisionModel

FloatTensor = npt.NDArray[np.float32]


async def infer(context: ServerContext, request: InferRequest) -> InferResponse:
    """Answer a request; cancelling it takes its rows out of the queue.

    Raises UsageError and ImageError for a request that does not fit the model, and the errors of `Runtime.vision` and
    `VisionModel.submit`.
    """
    ticket = _ticket(request.options)
    limits = context.settings.limits
    with context.runtime.vision(request.model, request.version or None) as model:
        tensor = _only_input(model, request, limits)
        wanted = _wanted_outputs(model, request)
        rows = await _rows(model, tensor, limits, ticket)
        labels = model.bundle.manifest.labels
        outputs = await asyncio.to_thread(_outputs, rows, wanted, labels, request.options)
        return InferResponse(model.name, model.version, request.id, outputs)


def _ticket(options: RequestOptions) -> Ticket:
    return Ticket(options.priority, None if options.timeout is None else time.monotonic() + options.timeout)


def _only_input(model: VisionModel, request: InferRequest, limits: Limits) -> InputTensor:
    """The request's one input, of a type and shape that the model takes."""
    if isinstance(model, SegmentModel):
        raise model.needs_prompts()
    known = {meta.name: meta for meta in inputs_of(model)}
    got = [tensor.name for tensor in request.inputs]
    if len(got) != 1 or got[0] not in known:
        raise UsageError(f"Give exactly one of the inputs {', '.join(known)}; got {', '.join(got) or 'none'}.")
    tensor = request.inputs[0]
    check_input(tensor, known[tensor.name], limits.max_pictures)
    return tensor


def _wanted_outputs(model: VisionModel, request: InferRequest) -> Sequence[RequestedOutput]:
    known = {meta.name: meta for meta in outputs_of(model)}
    names = [item.name for item in request.outputs]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"The model has no output '{unknown[0]}'.", hint=f"It has: {', '.join(known)}.")
    if len(set(names)) < len(names):
        raise UsageError("Each output may be named once.")
    for item in request.outputs:
        if item.classification is not None:
            _check_classification(item.name, item.classification, known[item.name].shape)
    return request.outputs or [RequestedOutput(name) for name in known]


def _check_classification(name: str, top: int, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or not 1 <= top <= shape[1]:
        raise UsageError(
            f"classification needs an output of shape [N, classes] and 1 to that many classes; "
            f"'{name}' has shape {list(shape)}, asked for {top}."
        )


async def _rows(model: VisionModel, tensor: InputTensor, limits: Limits, ticket: Ticket) -> list[Row]:
    """One result per row; if one fails, or the client leaves, the others are dropped."""
    if tensor.name != PICTURES.name:
        return await _submitted(model, await asyncio.to_thread(read_floats, tensor), ticket)
    options = DecodeOptions(max_pixels=limits.max_pixels)
    pictures = enumerate(await asyncio.to_thread(read_bytes, tensor))
    tasks = [asyncio.ensure_future(_picture(model, item, index, options, ticket)) for index, item in pictures]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel(*tasks)


async def _submitted(model: VisionModel, rows: FloatTensor, ticket: Ticket) -> list[Row]:
    futures: list[Future[Row]] = []
    try:
        for row in rows:
            # A comprehension would lose the ones that are queued when a later one is refused.
            futures.append(model.submit(row, ticket))  # noqa: PERF401
        return await asyncio.gather(*map(asyncio.wrap_future, futures))
    finally:
        for future in futures:
            future.cancel()


async def _picture(model: VisionModel, picture: bytes, index: int, options: DecodeOptions, ticket: Ticket) -> Row:
    try:
        return await model.raw(picture, decode_options=options, ticket=ticket)
    except ImageError as error:
        message = f"Input '{PICTURES.name}', element {index}: {error.message}"
        raise ImageError(error.reason, message, hint=error.hint) from error


def _outputs(
    rows: Sequence[Row], wanted: Sequence[RequestedOutput], labels: Sequence[Label], options: RequestOptions
) -> tuple[OutputTensor, ...]:
    return tuple(_output(rows, item, labels, options) for item in wanted)


def _output(
    rows: Sequence[Row], wanted: RequestedOutput, labels: Sequence[Label], options: RequestOptions
) -> OutputTensor:
    array: Array = np.stack([row[wanted.name] for row in rows])
    if wanted.classification is not None:
        array = _classes(array, wanted.classification, labels)
    return OutputTensor(wanted.name, array, options.binary if wanted.binary is None else wanted.binary)


def _classes(scores: Array, top: int, labels: Sequence[Label]) -> npt.NDArray[np.object_]:
    """(N, top) elements `score:index:label`, best first, ties by index, as the classification extension has them."""
    best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :top]
    names = [item.name for item in labels] if len(labels) == scores.shape[1] else [""] * scores.shape[1]
    texts = np.empty(best.shape, np.object_)
    for (row, place), index in np.ndenumerate(best):
        name = f":{names[index]}" if names[index] else ""
        texts[row, place] = f"{scores[row, index]:f}:{index}{name}".encode()
    return texts
