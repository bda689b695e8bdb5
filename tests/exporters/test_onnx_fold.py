from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vtk.exporters import onnx_fold
from vtk.exporters.onnx_fold import fold_constants


def fold(nodes: Sequence[Any], initializers: dict[str, Any], outputs: Sequence[str] = ("y",)) -> Any:
    """The folded graph, after a check that it computes what it did before."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(item), name) for name, item in initializers.items()],
    )
    before = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model = ir.from_proto(before)
    fold_constants(model)
    after = ir.to_proto(model)
    if not onnx_fold.RANDOM_OPS.intersection(node.op_type for node in nodes):
        feeds = {"x": np.random.default_rng().standard_normal((2, 4)).astype(np.float32)}
        with np.errstate(divide="ignore"):
            expected, got = (ReferenceEvaluator(model).run(None, feeds) for model in (before, after))
        for old, new in zip(expected, got, strict=True):
            np.testing.assert_array_equal(old, new)
    return after.graph


def ops(graph: Any) -> list[str]:
    return [node.op_type for node in graph.node]


SCALARS = {"zero": np.float32(0), "four": np.float32(4), "one": np.float32(1)}


def test_a_chain_of_constants_becomes_one_initializer() -> None:
    nodes = [
        helper.make_node("Range", ["zero", "four", "one"], ["r"]),
        helper.make_node("Sin", ["r"], ["s"]),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    assert ops(fold(nodes, SCALARS)) == ["Add"]


def test_every_output_of_a_split_is_folded() -> None:
    nodes = [
        helper.make_node("Split", ["w", "sizes"], ["a", "b"]),
        helper.make_node("Add", ["x", "a"], ["h"]),
        helper.make_node("Mul", ["h", "b"], ["y"]),
    ]
    weights = {"w": np.random.default_rng().standard_normal((2, 4)).astype(np.float32), "sizes": np.array([1, 1])}
    assert ops(fold(nodes, weights)) == ["Add", "Mul"]


def test_infinities_are_constants_like_others() -> None:
    nodes = [helper.make_node("Log", ["m"], ["l"]), helper.make_node("Add", ["x", "l"], ["y"])]
    graph = fold(nodes, {"m": np.array([0, 1, 0, 1], np.float32)})
    assert ops(graph) == ["Add"]
    (table,) = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == "l"]
    np.testing.assert_array_equal(table, [-np.inf, 0, -np.inf, 0])


def test_growth_is_bounded_and_rearranging_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    expand = [helper.make_node("Expand", ["w", "shape"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    turn = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    row = {"w": np.ones((1, 4), np.float32), "shape": np.array([2, 4])}
    monkeypatch.setattr(onnx_fold, "MAX_GROWN_ELEMENTS", 8)
    assert ops(fold(expand, row)) == ["Add"]
    monkeypatch.setattr(onnx_fold, "MAX_GROWN_ELEMENTS", 7)
    assert ops(fold(expand, row)) == ["Expand", "Add"]
    assert ops(fold(turn, {"w": np.ones((3, 4), np.float32)})) == ["MatMul"]


@pytest.mark.parametrize("op_type", sorted(onnx_fold.RANDOM_OPS - {"Multinomial"}))
def test_random_results_are_not_frozen(op_type: str) -> None:
    source = [] if op_type in ("RandomNormal", "RandomUniform") else ["w"]
    shape = {} if source else {"shape": [4]}
    nodes = [helper.make_node(op_type, source, ["r"], **shape), helper.make_node("Add", ["x", "r"], ["y"])]
    assert ops(fold(nodes, {"w": np.full(4, 0.5, np.float32)})) == [op_type, "Add"]


def test_outputs_keep_their_node() -> None:
    nodes = [helper.make_node("Sin", ["w"], ["c"]), helper.make_node("Relu", ["x"], ["y"])]
    assert ops(fold(nodes, {"w": np.ones(4, np.float32)}, ("y", "c"))) == ["Sin", "Relu"]


def test_an_operator_that_the_evaluator_lacks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [helper.make_node("Sin", ["w"], ["s"]), helper.make_node("Add", ["x", "s"], ["y"])]

    def lacking(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(onnx_fold, "ReferenceEvaluator", lacking)
    assert ops(fold(nodes, {"w": np.ones(4, np.float32)})) == ["Sin", "Add"]
