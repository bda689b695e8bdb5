"""Which nodes stay in float32: by structure, for each kind, and what goes wrong where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vtk.exporters.precision import PrecisionPlan, plan_precision
from vtk.exporters.precision_islands import DEFAULT_KINDS, FINDERS, MIXED_KINDS, REASONS

ATTENTION = """(float[1,1,64] x) => (float[1,1,64] y) {
    q0 = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    q = Mul(q0, scale)
    kt = Transpose <perm=[0,2,1]> (k)
    s = MatMul(q, kt)
    p = Softmax <axis=-1> (s)
    o = MatMul(p, v)
    y = MatMul(o, wo)
}"""
LATE_SCALE = """(float[1,1,64] x) => (float[1,1,64] y) {
    q = MatMul(x, wq)
    k = MatMul(x, wk)
    v = MatMul(x, wv)
    kt = Transpose <perm=[0,2,1]> (k)
    s0 = MatMul(q, kt)
    s = Mul(s0, scale)
    p = Softmax <axis=-1> (s)
    o = MatMul(p, v)
    y = MatMul(o, wo)
}"""
EYE = np.eye(64, dtype=np.float32)
ATTENTION_CONSTANTS = {"wq": EYE, "wk": EYE, "wv": EYE, "wo": EYE, "scale": np.float32(1 / 8)}
X40 = np.full((1, 1, 64), 40, np.float32)


def without(plan: PrecisionPlan, *kinds: str) -> PrecisionPlan:
    """The plan with some islands lost."""
    return replace(plan, kept={name: kind for name, kind in plan.kept.items() if kind not in kinds})


def test_every_kind_has_a_reason_and_a_rule() -> None:
    assert {*DEFAULT_KINDS, *MIXED_KINDS} == FINDERS.keys()
    assert FINDERS.keys() | {"constant_range", "no_half_form"} == REASONS.keys()


@pytest.mark.parametrize("text", [ATTENTION, LATE_SCALE])
def test_scores_and_softmax_stay_with_the_scaling(text: str, make_graph: Any) -> None:
    """Case V14: every softmax, and the product that feeds it."""
    kept = plan_precision(make_graph(text, ATTENTION_CONSTANTS), "fp16").kept
    assert kept["p"] == "softmax"
    assert kept["s"] == "attention_scores"
    assert kept.get("q0") is kept.get("k") is kept.get("v") is kept.get("o") is kept.get("y") is None


def test_v06_products_of_queries_and_keys_overflow_without_their_island(make_graph: Any, run_rounded: Any) -> None:
    """Case V06: q = k = 40 · ones(64); 102400 is beyond float16, an eighth of it is not."""
    for text, lost, finite in (
        (LATE_SCALE, (), True),
        (LATE_SCALE, ("attention_scores", "softmax"), False),
        (ATTENTION, ("attention_scores", "softmax"), True),
    ):
        model = make_graph(text, ATTENTION_CONSTANTS)
        plan = without(plan_precision(model, "fp16"), *lost)
        came = run_rounded(model, plan, {"x": X40})["y"]
        assert bool(np.isfinite(came).all()) is finite
        if finite:
            np.testing.assert_array_equal(came, X40)


def test_a_lost_softmax_island_costs_digits(make_graph: Any, run_rounded: Any) -> None:
    rng = np.random.default_rng(0)
    text = ATTENTION.replace("1,1,64", "1,32,64")
    constants = {name: rng.normal(size=(64, 64)).astype(np.float32) / 4 for name in ("wq", "wk", "wv", "wo")}
    constants["scale"] = np.float32(1 / 8)
    x = rng.normal(size=(1, 32, 64)).astype(np.float32)
    errors = []
    for lost in ((), ("attention_scores", "softmax")):
        model = make_graph(text, constants)
        plan = without(plan_precision(model, "bf16"), *lost)
        exact = reference_attention(x, constants)
        errors.append(np.abs(run_rounded(model, plan, {"x": x})["y"] - exact).mean())
    assert errors[1] > 1.1 * errors[0]


def reference_attention(x: Any, constants: Any) -> Any:
    q, k, v = (x @ constants[name] for name in ("wq", "wk", "wv"))
    scores = q / 8 @ k.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v @ constants["wo"]


NORM = """(float[1,4] x) => (float[1,4] y) {
    h = MatMul(x, w)
    n = LayerNormalization <axis=-1> (h, one, zero)
    y = MatMul(n, w)
}"""
# What torch wrote before opset 17 (cases V10, V15)
PIECES = """(float[1,4] x) => (float[1,4] y) {
    h = MatMul(x, w)
    m = ReduceMean <keepdims=1> (h, last)
    d = Sub(h, m)
    p = Pow(d, two)
    v = ReduceMean <keepdims=1> (p, last)
    e = Add(v, eps)
    r = Sqrt(e)
    n = Div(d, r)
    y = MatMul(n, w)
}"""
NORM_CONSTANTS = {
    "w": np.eye(4, dtype=np.float32),
    "one": np.ones(4, np.float32),
    "zero": np.zeros(4, np.float32),
    "two": np.float32(2),
    "eps": np.float32(1e-5),
    "last": np.array([-1]),
}
NORM_KINDS = ("layer_norm", "reductions", "wide_range", "constant_range", "outputs")


@pytest.mark.parametrize("text", [NORM, PIECES])
def test_v10_a_layer_norm_is_right_where_its_squares_overflow(text: str, make_graph: Any, run_rounded: Any) -> None:
    """Cases V10 and V15: x = [300, -300, 1, 2]."""
    model = make_graph(
        text, {name: value for name, value in NORM_CONSTANTS.items() if f" {name}" in text or f", {name}" in text}
    )
    plan = plan_precision(model, "fp16")
    came = run_rounded(model, plan, {"x": np.array([[300, -300, 1, 2]], np.float32)})["y"]
    np.testing.assert_allclose(came, [[1.4107, -1.4177, 0.0012, 0.0059]], atol=1e-3)


def test_v10_pieces_of_a_layer_norm_overflow_without_their_island(make_graph: Any, run_rounded: Any) -> None:
    model = make_graph(PIECES, {name: NORM_CONSTANTS[name] for name in ("w", "two", "eps", "last")})
    plan = without(plan_precision(model, "fp16"), *NORM_KINDS)
    assert plan.kept == {}
    came = run_rounded(model, plan, {"x": np.array([[300, -300, 1, 2]], np.float32)})["y"]
    np.testing.assert_array_equal(came, [[0, 0, 0, 0]])


ROPE = """(float[1,4,8] x) => (float[1,4,8] y) {
    q0 = MatMul(x, w)
    k0 = MatMul(x, w)
    v = MatMul(x, w)
    qc = Mul(q0, cos)
    qa, qb = Split <axis=-1, num_outputs=2> (q0)
    qn = Neg(qb)
    qr = Concat <axis=-1> (qn, qa)
    qs = Mul(qr, sin)
    q = Add(qc, qs)
    kt = Transpose <perm=[0,2,1]> (k0)
    s = MatMul(q, kt)
    p = Softmax <axis=-1> (s)
    o = MatMul(p, v)
    y = MatMul(o, w)
}"""


def test_v36_rotations_and_their_tables_stay_float32(make_graph: Any) -> None:
    tables = {"cos": np.ones((4, 8), np.float32), "sin": np.ones((4, 8), np.float32)}
    kept = plan_precision(make_graph(ROPE, {"w": np.eye(8, dtype=np.float32), **tables}), "bf16").kept
    assert {name for name, kind in kept.items() if kind == "rope"} == {"qc", "qa", "qn", "qr", "qs", "q"}


DETECTOR = """(float[1,3,8,8] images) => (float[1,2,3] logits, float[1,2,4] boxes) {
    f = Conv(images, wf)
    flat = Reshape(f, tokens)
    memory = Transpose <perm=[0,2,1]> (flat)
    s0 = MatMul(memory, ws)
    s1 = Add(s0, bs)
    best = ReduceMax <keepdims=0> (s1, last)
    topv, topi = TopK <axis=1> (best, two)
    idx0 = Unsqueeze(topi, last)
    idx = Expand(idx0, query_shape)
    query = GatherElements <axis=1> (memory, idx)
    r0 = MatMul(query, wb)
    ref = Sigmoid(r0)
    o0 = MatMul(query, wo)
    o1 = Mul(o0, small)
    xy, wh = Split <axis=-1> (ref, halves)
    loc = Add(xy, o1)
    grid = Reshape(loc, grid_shape)
    sampled = GridSample (f, grid)
    sq = Reshape(sampled, dims)
    context = Transpose <perm=[0,2,1]> (sq)
    hidden = Add(query, context)
    norm = LayerNormalization <axis=-1> (hidden, one, zero)
    logits = MatMul(norm, ws)
    d0 = MatMul(norm, wd)
    dist = Reshape(d0, edges)
    prob = Softmax <axis=-1> (dist)
    moved = MatMul(prob, bins)
    boxes = Add(ref, moved)
}"""


def detector_constants() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"wf": (6, 3, 1, 1), "ws": (6, 3), "bs": (3,), "wb": (6, 4), "wo": (6, 2), "wd": (6, 20)}
    integers = {
        "tokens": [1, 6, 64],
        "last": [-1],
        "two": [2],
        "query_shape": [1, 2, 6],
        "halves": [2, 2],
        "grid_shape": [1, 2, 1, 2],
        "dims": [1, 6, 2],
        "edges": [1, 2, 4, 5],
    }
    return {
        **{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()},
        **{name: np.array(value) for name, value in integers.items()},
        "small": np.float32(0.1),
        "one": np.ones(6, np.float32),
        "zero": np.zeros(6, np.float32),
        "bins": np.linspace(-0.1, 0.1, 5, dtype=np.float32),
    }


def test_what_a_box_depends_on_stays_back_to_the_layers(make_graph: Any) -> None:
    kept = plan_precision(make_graph(DETECTOR, detector_constants()), "fp16").kept
    assert {name: kept.get(name) for name in ("best", "topv")} == dict.fromkeys(("best", "topv"), "query_selection")
    assert {kept[name] for name in ("sampled", "grid", "loc", "o1", "xy")} == {"sampling_locations"}
    assert {kept[name] for name in ("boxes", "moved", "prob", "ref")} == {"box_refinement"}
    assert kept["norm"] == "layer_norm"
    half = ("f", "memory", "s0", "s1", "query", "r0", "o0", "hidden", "logits", "d0", "dist")
    assert [name for name in half if name in kept] == []


def test_mixed_keeps_all_that_follows_the_selection(make_graph: Any, run_rounded: Any) -> None:
    model = make_graph(DETECTOR, detector_constants())
    plan = plan_precision(model, "mixed")
    computed = {"query", "r0", "o0", "hidden", "logits", "d0", "s0", "s1", "f"}
    assert computed <= plan.kept.keys()
    assert plan.kept["f"] == "first_layer"
    assert "memory" not in plan.kept
    images = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    assert run_rounded(model, plan, {"images": images})["boxes"].shape == (1, 2, 4)


def test_sigmoid_linear_units_stay_half(make_graph: Any) -> None:
    """x · sigmoid(x) is an activation: a walk from the output ends there."""
    text = "(float[1,4] x) => (float[1,4] y) { h = MatMul(x, w)  g = Sigmoid(h)  y = Mul(h, g) }"
    assert plan_precision(make_graph(text, {"w": np.eye(4, dtype=np.float32)}), "fp16").kept == {}


def test_indices_computed_from_coordinates_stay_exact(make_graph: Any) -> None:
    """Bilinear sampling written as a gather: pixel, fraction and weight."""
    text = """(float[1,4] x) => (float[1,4] y) {
        loc0 = MatMul(x, w)
        loc = Mul(loc0, size)
        cell = Floor(loc)
        fraction = Sub(loc, cell)
        rest = Sub(one, fraction)
        index = Cast <to=7> (cell)
        value = GatherElements <axis=1> (x, index)
        features = Relu(value)
        part = Mul(features, rest)
        y = MatMul(part, w)
    }"""
    constants = {"w": np.eye(4, dtype=np.float32), "size": np.float32(4), "one": np.float32(1)}
    kept = plan_precision(make_graph(text, constants), "fp16").kept
    assert kept == dict.fromkeys(("loc", "cell", "fraction", "rest"), "sampling_locations")


def test_long_sums_and_exponentials_stay(make_graph: Any, run_rounded: Any) -> None:
    """4096 numbers of 40 sum up to 163840, and exp(12) is 162755: both beyond float16, their roots are not."""
    text = """(float[1,4096] x) => (float[1,1] y) {
        h = Relu(x)
        s = ReduceSum(h, last)
        r = Sqrt(s)
        g = MatMul(r, small)
        e = Exp(g)
        q = Sqrt(e)
        y = MatMul(q, one)
    }"""
    constants = {
        "last": np.array([1]),
        "small": np.full((1, 1), 12 / 163840**0.5, np.float32),
        "one": np.ones((1, 1), np.float32),
    }
    x = np.full((1, 4096), 40, np.float32)
    for lost, finite in (((), True), (("reductions",), False), (("wide_range",), False)):
        model = make_graph(text, constants)
        plan = plan_precision(model, "fp16")
        assert {name: plan.kept[name] for name in "sreq"} == {"s": "reductions", **dict.fromkeys("req", "wide_range")}
        came = run_rounded(model, without(plan, *lost), {"x": x})["y"]
        assert bool(np.allclose(came, np.exp(6), rtol=0.02)) is finite


def test_places_that_become_waves_stay_exact(make_graph: Any) -> None:
    """A place in 0..1 in half precision is half a pixel of a thousand off, and its wave a percent."""
    text = """(float[1,3,2] xy, float[1,3,8] x) => (float[1,3,8] y) {
        centered = Sub(xy, half)
        angles = MatMul(centered, frequencies)
        turned = Mul(angles, pi)
        wave = Sin(turned)
        joined = Concat <axis=-1> (wave, wave)
        sum = Add(x, joined)
        y = MatMul(sum, w)
    }"""
    frequencies = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    constants = {
        "frequencies": frequencies,
        "half": np.float32(0.5),
        "pi": np.float32(6.28),
        "w": np.eye(8, dtype="f4"),
    }
    kept = plan_precision(make_graph(text, constants), "bf16").kept
    assert kept == dict.fromkeys(("centered", "angles", "turned", "wave", "joined"), "sampling_locations")


def test_mixed_keeps_a_graph_that_is_a_decoder_as_a_whole(make_graph: Any) -> None:
    text = "(float[1,4] x) => (float[1,4] y) { h = MatMul(x, w)  r = Relu(h)  z = MatMul(r, w)  y = Relu(z) }"
    model = make_graph(text, {"w": np.eye(4, dtype=np.float32)})
    assert plan_precision(model, "fp16", is_decoder=True).kept == {}
    assert plan_precision(model, "mixed").kept.keys() < plan_precision(model, "mixed", is_decoder=True).kept.keys()
    assert plan_precision(model, "mixed", is_decoder=True).kept.keys() == {"h", "r", "z", "y"}
