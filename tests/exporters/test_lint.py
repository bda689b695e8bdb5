"""Each rule has a graph that breaks it and nothing else, so a rule that is taken away fails its test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vtk.errors import LintError
from vtk.exporters import lint as lint_module
from vtk.exporters.lint import lint, lint_file

Dims = Sequence[int | str] | None


def value(name: str, dims: Dims, dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, dims)


def ints(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def graph(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (value("x", (2, 4)),),
    outputs: Sequence[Any] = (value("y", (2, 4)),),
    initializers: Sequence[Any] = (),
    opset: int = 18,
    domains: Sequence[str] = (),
) -> Any:
    made = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(made, opset_imports=opsets)


def node(op_type: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def clean() -> Any:
    return graph([node("Relu", "x", "h", "first"), node("Sigmoid", "h", "y", "second")])


def control_flow(op_type: str) -> Any:
    def branch(name: str, *inputs: Any) -> Any:
        body = [helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.zeros((2, 4), np.float32)))]
        outputs = [value("k", (2, 4))]
        if op_type == "Loop":
            body.append(node("Identity", "going", "still"))
            outputs.insert(0, value("still", (), TensorProto.BOOL))
        return helper.make_graph(body, name, list(inputs), outputs)

    if op_type == "If":
        yes = node("If", "flag", "y", then_branch=branch("a"), else_branch=branch("b"))
        return graph([yes], inputs=[value("flag", (), TensorProto.BOOL)])
    turns = (value("turn", (), TensorProto.INT64), value("going", (), TensorProto.BOOL), value("state", (2, 4)))
    return graph(
        [node("Loop", "n go x", "y", body=branch("body", *turns))],
        initializers=[
            numpy_helper.from_array(np.array(3, np.int64), "n"),
            numpy_helper.from_array(np.array(True), "go"),
        ],
    )


def test_a_clean_graph_has_no_findings() -> None:
    report = lint(clean())
    assert (report.errors, report.warnings) == ((), ())
    assert report.op_counts == {"Relu": 1, "Sigmoid": 1}
    report.raise_if_failed()


BROKEN: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "opset 16": ("opset", "16", lambda: graph([node("Relu", "x", "y")], opset=16)),
    "V18 unknown domain": (
        "domain",
        "mmdeploy::grid_sampler ×2",
        lambda: graph(
            [
                node("grid_sampler", "x", "h", domain="mmdeploy"),
                node("grid_sampler", "h", "y", domain="mmdeploy"),
            ],
            domains=["mmdeploy"],
        ),
    ),
    "If": ("forbidden-op", "If ×1", lambda: control_flow("If")),
    "Loop": ("forbidden-op", "Loop ×1", lambda: control_flow("Loop")),
    "Range": (
        "forbidden-op",
        "Range ×1 (first: Range 'steps')",
        lambda: graph(
            [node("Range", "zero four one", "r", "steps"), node("Add", "x r", "y")],
            initializers=[
                numpy_helper.from_array(np.array(item, np.float32), name)
                for name, item in (("zero", 0), ("four", 4), ("one", 1))
            ],
        ),
    ),
    "SequenceConstruct": (
        "forbidden-op",
        "SequenceConstruct ×1",
        lambda: graph(
            [
                node("SequenceConstruct", "x x", "s"),
                node("SequenceAt", "s i", "y"),
            ],
            initializers=[numpy_helper.from_array(np.array(0, np.int64), "i")],
        ),
    ),
    "RandomNormal": (
        "forbidden-op",
        "no two runs agree",
        lambda: graph([node("RandomNormalLike", "x", "r"), node("Add", "x r", "y")]),
    ),
    "symbolic input": (
        "static-shape",
        "Input 'x'",
        lambda: graph(
            [node("Relu", "x", "h"), node("ReduceSum", "h axes", "y")],
            inputs=[value("x", ("batch", 4))],
            outputs=[value("y", (1, 1))],
            initializers=[ints("axes", 0, 1)],
        ),
    ),
    "symbolic output": (
        "static-shape",
        "Output 'y'",
        lambda: graph(
            [node("Reshape", "x shape", "y")],
            inputs=[value("x", (2, 4)), value("shape", (2,), TensorProto.INT64)],
            outputs=[value("y", ("a", "b"))],
        ),
    ),
    "unknown intermediate": (
        "static-shape",
        "Value 'h' of Reshape 'flex'",
        lambda: graph(
            [node("Reshape", "x shape", "h", "flex"), node("Relu", "h", "i"), node("ReduceSum", "i", "y", keepdims=0)],
            inputs=[value("x", (2, 4)), value("shape", (2,), TensorProto.INT64)],
            outputs=[value("y", ())],
        ),
    ),
    "float64 in the middle": (
        "dtype",
        "'h' (made by Cast 'widen') is DOUBLE (2x4)",
        lambda: graph([node("Cast", "x", "h", "widen", to=TensorProto.DOUBLE), node("Cast", "h", "y", to=1)]),
    ),
    "float64 initializer": (
        "dtype",
        "'w' (an initializer) is DOUBLE",
        lambda: graph(
            [node("Cast", "w", "h", to=1), node("Add", "x h", "y")],
            initializers=[numpy_helper.from_array(np.ones(4), "w")],
        ),
    ),
    "complex input": (
        "dtype",
        "'c' (an input) is COMPLEX64",
        lambda: graph([node("Relu", "x", "y")], inputs=[value("x", (2, 4)), value("c", (2,), TensorProto.COMPLEX64)]),
    ),
    "nine dimensions": (
        "rank",
        "'h' (made by Reshape 'deep') has 9 dimensions",
        lambda: graph(
            [node("Reshape", "x deep_shape", "h", "deep"), node("Reshape", "h shape", "y")],
            initializers=[ints("deep_shape", 2, 4, *[1] * 7), ints("shape", 2, 4)],
        ),
    ),
    "TopK of 3841": (
        "topk",
        "TopK 'best' takes the 3841 largest; TensorRT takes at most 3840",
        lambda: graph(
            [node("TopK", "x k", "y i", "best")],
            inputs=[value("x", (1, 5000))],
            outputs=[value("y", (1, 3841)), value("i", (1, 3841), TensorProto.INT64)],
            initializers=[ints("k", 3841)],
        ),
    ),
    "two values of one name": (
        "unique-name",
        "Value name 'w' is used 2 times",
        lambda: graph(
            [node("Add", "x w", "y")],
            initializers=[
                numpy_helper.from_array(np.ones(4, np.float32), "w"),
                numpy_helper.from_array(np.ones(4, np.float32), "w"),
            ],
        ),
    ),
    "two nodes of one name": (
        "unique-name",
        "Node name 'n' is used 2 times",
        lambda: graph([node("Relu", "x", "h", "n"), node("Relu", "h", "y", "n")]),
    ),
    "used before it is made": (
        "dangling",
        "Relu 'b' uses 'h', which nothing before it makes",
        lambda: graph([node("Relu", "h", "y", "b"), node("Relu", "x", "h", "a")]),
    ),
    "output of no node": (
        "dangling",
        "Output 'z' is made by no node",
        lambda: graph([node("Relu", "x", "y")], outputs=[value("y", (2, 4)), value("z", (2, 4))]),
    ),
    "unused initializer": (
        "dangling",
        "Initializer 'w' is not used",
        lambda: graph([node("Relu", "x", "y")], initializers=[ints("w", 1)]),
    ),
    "dead node": (
        "dangling",
        "No one uses the result of Exp 'dead'",
        lambda: graph([node("Relu", "x", "y"), node("Exp", "x", "h", "dead")]),
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_graph_breaks_its_rule_and_no_other(case: str) -> None:
    rule, sentence, make = BROKEN[case]
    report = lint(make())
    assert {finding.rule for finding in report.errors} == {rule}
    assert any(sentence in str(finding) for finding in report.errors), report.errors
    with pytest.raises(LintError, match="breaks rules") as caught:
        report.raise_if_failed()
    assert caught.value.exit_code == 2


FORBIDDEN = [
    *("If", "Loop", "Scan", "NonZero", "Unique", "Compress", "NonMaxSuppression", "Range"),
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
    *("SequenceMap", "SplitToSequence", "ConcatFromSequence", "Bernoulli", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
]


@pytest.mark.parametrize("op_type", FORBIDDEN)
def test_operators_that_a_static_graph_must_not_have_are_errors(op_type: str) -> None:
    report = lint(graph([node(op_type, "x", "h", "bad"), node("Relu", "x", "y"), node("Identity", "h", "z")]))
    (message,) = [str(finding) for finding in report.errors if finding.rule == "forbidden-op"]
    assert message.startswith(f"{op_type} ×1 (first: {op_type} 'bad'): ")


@pytest.mark.parametrize("dtype", ["DOUBLE", "COMPLEX64", "COMPLEX128", "STRING"])
def test_element_types_that_engines_lack_are_errors(dtype: str) -> None:
    kind = TensorProto.DataType.Value(dtype)
    model = graph(
        [node("Identity", "s", "t"), node("Relu", "x", "y")],
        inputs=[value("x", (2, 4)), value("s", (2,), kind)],
        outputs=[value("y", (2, 4)), value("t", (2,), kind)],
    )
    messages = [str(finding) for finding in lint(model).errors if finding.rule == "dtype"]
    assert sorted(message.split(" is ")[0] for message in messages) == ["'s' (an input)", "'t' (made by Identity 't')"]


def test_the_limits_themselves_are_allowed() -> None:
    top = graph(
        [node("TopK", "x k", "y i")],
        inputs=[value("x", (1, 5000))],
        outputs=[value("y", (1, 3840)), value("i", (1, 3840), TensorProto.INT64)],
        initializers=[ints("k", 3840)],
    )
    deep = graph(
        [node("Reshape", "x eight", "h"), node("Reshape", "h shape", "y")],
        initializers=[ints("eight", 2, 4, *[1] * 6), ints("shape", 2, 4)],
    )
    old = graph([node("Relu", "x", "y")], opset=17)
    for model in (top, deep, old):
        assert lint(model).errors == ()


def test_topk_axis_is_respected() -> None:
    model = graph(
        [node("TopK", "x k", "y i", axis=0)],
        inputs=[value("x", (4, 5000))],
        outputs=[value("y", (2, 5000)), value("i", (2, 5000), TensorProto.INT64)],
        initializers=[ints("k", 2)],
    )
    assert lint(model).errors == ()


RISKY: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "V01 GridSample": (
        "risky-op",
        "GridSample ×2: TensorRT 10.14 and 11.1",
        lambda: graph(
            [node("GridSample", "x g", "h"), node("GridSample", "h g", "y")],
            inputs=[value("x", (1, 2, 4, 4)), value("g", (1, 4, 4, 2))],
            outputs=[value("y", (1, 2, 4, 4))],
        ),
    ),
    "Einsum": (
        "risky-op",
        "Einsum ×1",
        lambda: graph([node("Einsum", "x x", "y", equation="ij,ij->ij")]),
    ),
    "RoiAlign": (
        "risky-op",
        "RoiAlign ×1",
        lambda: graph(
            [node("RoiAlign", "x r b", "y")],
            inputs=[value("x", (1, 2, 8, 8)), value("r", (3, 4)), value("b", (3,), TensorProto.INT64)],
            outputs=[value("y", (3, 2, 1, 1))],
        ),
    ),
    "ScatterElements": (
        "risky-op",
        "ScatterElements ×1",
        lambda: graph(
            [node("ScatterElements", "x i x", "y")], inputs=[value("x", (2, 4)), value("i", (2, 4), TensorProto.INT64)]
        ),
    ),
    "ScatterND": (
        "risky-op",
        "ScatterND ×1",
        lambda: graph(
            [node("ScatterND", "x i x", "y")], inputs=[value("x", (2, 4)), value("i", (2, 1), TensorProto.INT64)]
        ),
    ),
    "IsNaN": (
        "risky-op",
        "IsNaN ×1",
        lambda: graph([node("IsNaN", "x", "y")], outputs=[value("y", (2, 4), TensorProto.BOOL)]),
    ),
    "Tile": (
        "risky-op",
        "Tile ×1",
        lambda: graph([node("Tile", "x r", "y")], initializers=[ints("r", 1, 1)]),
    ),
    "bfloat16": (
        "bfloat16",
        "bfloat16 ×1",
        lambda: graph([node("Cast", "x", "h", to=TensorProto.BFLOAT16), node("Cast", "h", "y", to=1)]),
    ),
    "operator of ONNX Runtime": (
        "ort-domain",
        "com.microsoft::Gelu ×1",
        lambda: graph([node("Gelu", "x", "y", domain="com.microsoft")], domains=["com.microsoft"]),
    ),
}


@pytest.mark.parametrize("case", RISKY)
def test_a_risky_graph_is_named_but_not_refused(case: str) -> None:
    rule, sentence, make = RISKY[case]
    report = lint(make())
    assert report.errors == ()
    assert [finding.rule for finding in report.warnings] == [rule]
    assert sentence in str(report.warnings[0])


def test_a_graph_over_the_protobuf_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = clean()
    monkeypatch.setattr(lint_module, "MAX_PROTO_BYTES", model.ByteSize())
    assert lint(model).errors == ()
    monkeypatch.setattr(lint_module, "MAX_PROTO_BYTES", model.ByteSize() - 1)
    assert [finding.rule for finding in lint(model).errors] == ["size"]


def test_other_rules_still_speak_when_shapes_cannot_be_inferred() -> None:
    body = helper.make_graph([node("Relu", "x", "y", domain="ai.onnx")], "g", [value("x", (2,))], [value("y", (2,))])
    report = lint(helper.make_model(body, opset_imports=[helper.make_opsetid("com.microsoft", 1)]))
    assert [finding.rule for finding in report.errors] == ["shape-inference", "opset"]
    assert "Opset None is below 17" in str(report.errors[1])


def test_many_problems_are_counted() -> None:
    model = graph([node("Relu", "x", "y")], initializers=[ints(f"w{n}", n) for n in range(8)])
    with pytest.raises(LintError, match=r"\(5\) Initializer 'w4' is not used\. … and 3 more\.") as caught:
        lint(model).raise_if_failed()
    assert "w5" not in str(caught.value)


def test_a_file_is_checked_without_its_weights(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    model = graph([node("MatMul", "x w", "y")], initializers=[weight])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    assert lint_file(tmp_path / "m.onnx").errors == ()
