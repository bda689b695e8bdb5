"""Bilinear sampling without GridSample: Pad, Gather, Mul and Add, which every engine gets right.

TensorRT miscompiles deformable attention that is built on GridSample (NVIDIA/TensorRT #4813). The written-out form
follows torch's `grid_sample` (bilinear, zeros, align_corners=False); the map is padded by one pixel, so that every
sample outside finds zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from vtk.errors import ExportError

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


def replace_grid_samples(model: ir.Model) -> int:
    """Rewrite every GridSample of a float32 graph with static shapes, in place; returns how many there were.

    Raises ExportError for one with another mode or without a static shape.
    """
    nodes = [node for node in model.graph if node.op_type == "GridSample"]
    for index, node in enumerate(nodes):
        _check(node)
        writer = _Writer(f"{node.name or f'grid_sample_{index}'}")
        sampled = _sample(writer, node.inputs[0], node.inputs[1])
        model.graph.insert_before(node, writer.nodes)
        for value in writer.constants:
            model.graph.register_initializer(value)
        _take_over(node.outputs[0], sampled)
        model.graph.remove(node, safe=True)
    return len(nodes)


def _check(node: ir.Node) -> None:
    mode = node.attributes.get_string("mode", "linear")
    padding = node.attributes.get_string("padding_mode", "zeros")
    aligned = node.attributes.get_int("align_corners", 0)
    if mode not in ("bilinear", "linear") or padding != "zeros" or aligned:
        raise ExportError(
            f"GridSample '{node.name}' (mode {mode}, padding {padding}, align_corners {aligned}) has no gather form.",
            hint="Pass --deform grid_sample to keep the operator.",
        )
    for value in node.inputs:
        if value is None or value.shape is None or not value.shape.is_static() or len(value.shape) != 4:
            raise ExportError(f"GridSample '{node.name}' must sample a map (N, C, H, W) of fixed shape.")


class _Writer:
    """Collects nodes and constants under one name; each call gives the value that the new node makes."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._prefix = prefix

    def __call__(
        self,
        op_type: str,
        *inputs: ir.Value,
        shape: Sequence[int],
        dtype: ir.DataType = FLOAT,
        **attributes: int | list[int],
    ) -> ir.Value:
        name = f"{self._prefix}.{op_type.lower()}_{len(self.nodes)}"
        output = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.nodes.append(ir.node(op_type, inputs, attributes, outputs=[output], name=f"node_{name}"))
        return output

    def constant(self, array: npt.NDArray[np.generic]) -> ir.Value:
        name = f"{self._prefix}.const_{len(self.constants)}"
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def number(self, value: float) -> ir.Value:
        return self.constant(np.array(value, np.float32))


def _sample(write: _Writer, source: ir.Value, grid: ir.Value) -> ir.Value:
    """(N, C, H, W) at grid (N, h, w, 2), xy in -1..1 from edge to edge -> (N, C, h, w)."""
    batch, channels, height, width = _sizes(source)
    _, out_h, out_w, _ = _sizes(grid)
    flat = [batch, out_h * out_w]
    columns, fractions_x = _corners(write, _axis(write, grid, 0, flat), width, flat)
    rows, fractions_y = _corners(write, _axis(write, grid, 1, flat), height, flat)
    pixels = _pixels(write, source)
    first = write.constant(np.arange(batch, dtype=np.int64)[:, None] * (height + 2) * (width + 2))
    stride = write.constant(np.array(width + 2, np.int64))
    total: ir.Value | None = None
    for row, weight_y in zip(rows, fractions_y, strict=True):
        start = write("Add", write("Mul", row, stride, shape=flat, dtype=INT64), first, shape=flat, dtype=INT64)
        for column, weight_x in zip(columns, fractions_x, strict=True):
            index = write("Add", start, column, shape=flat, dtype=INT64)
            corner = write("Gather", pixels, index, shape=[*flat, channels], axis=0)
            weight = write("Mul", weight_y, weight_x, shape=flat)
            last = write.constant(np.array([-1], np.int64))
            weighted = write("Mul", corner, write("Unsqueeze", weight, last, shape=[*flat, 1]), shape=[*flat, channels])
            total = weighted if total is None else write("Add", total, weighted, shape=[*flat, channels])
    assert total is not None
    by_channel = write("Transpose", total, shape=[batch, channels, out_h * out_w], perm=[0, 2, 1])
    shape = [batch, channels, out_h, out_w]
    return write("Reshape", by_channel, write.constant(np.array(shape, np.int64)), shape=shape)


def _axis(write: _Writer, grid: ir.Value, axis: int, flat: list[int]) -> ir.Value:
    """The x (0) or y (1) of every location, (N, h * w)."""
    taken = write("Gather", grid, write.constant(np.array(axis, np.int64)), shape=_sizes(grid)[:3], axis=3)
    return write("Reshape", taken, write.constant(np.array(flat, np.int64)), shape=flat)


def _corners(
    write: _Writer, location: ir.Value, size: int, flat: list[int]
) -> tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]:
    """Both pixels next to a location in -1..1, as indices into the padded axis, and the weight of each."""
    half = write.number(size / 2)
    # ((x + 1) * size - 1) / 2
    position = write("Add", write("Mul", location, half, shape=flat), write.number((size - 1) / 2), shape=flat)
    low = write("Floor", position, shape=flat)
    fraction = write("Sub", position, low, shape=flat)
    rest = write("Sub", write.number(1.0), fraction, shape=flat)
    pixels = tuple(
        write(
            "Cast",
            write(
                "Clip",
                write("Add", low, write.number(shift), shape=flat),
                write.number(0.0),
                write.number(size + 1.0),
                shape=flat,
            ),
            shape=flat,
            dtype=INT64,
            to=int(INT64),
        )
        for shift in (1.0, 2.0)
    )
    return (pixels[0], pixels[1]), (rest, fraction)


def _pixels(write: _Writer, source: ir.Value) -> ir.Value:
    """The padded map as rows of channels, (N * (H + 2) * (W + 2), C): one Gather then reads whole rows."""
    batch, channels, height, width = _sizes(source)
    padded_shape = [batch, channels, height + 2, width + 2]
    pads = write.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    padded = write("Pad", source, pads, shape=padded_shape)
    last = write("Transpose", padded, shape=[batch, height + 2, width + 2, channels], perm=[0, 2, 3, 1])
    rows = [batch * (height + 2) * (width + 2), channels]
    return write("Reshape", last, write.constant(np.array(rows, np.int64)), shape=rows)


def _sizes(value: ir.Value) -> list[int]:
    assert value.shape is not None
    return [int(size) for size in value.shape]


def _take_over(old: ir.Value, new: ir.Value) -> None:
    """`new` stands where `old` stood, under its name, also as an output of the graph."""
    name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name, new.name = None, name
