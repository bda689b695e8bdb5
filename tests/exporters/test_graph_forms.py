"""Operations that engines get wrong, written out: the same numbers without the operator."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vtk.errors import ExportError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.explicit_attention import attention, write_out_attention
from vtk.exporters.family import FamilyOptions
from vtk.exporters.graph_forms import GraphForms
from vtk.exporters.lint import lint
from vtk.exporters.load import load_model
from vtk.exporters.onnx_grid_sample import replace_grid_samples
from vtk.exporters.to_onnx import export_graphs

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
LIMIT = 1e-6


class Sampler(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = {"mode": "bilinear", "align_corners": False, **options}

    def forward(self, value: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(value, grid, **self.options)


def exported(module: nn.Module, *inputs: torch.Tensor, opset: int = 18, explicit: bool = False) -> ir.Model:
    program = torch.export.export(module.eval(), inputs)
    if explicit:
        program = write_out_attention(program)
    made = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
    assert made is not None
    return made.model


def run(model: ir.Model, *inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {spec.name: tensor.numpy() for spec, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return session.run(None, feeds)[0]


def op_types(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize(
    ("value_shape", "grid_shape", "reach"),
    [((1, 2, 5, 7), (1, 3, 4, 2), 1.2), ((6, 3, 1, 4), (6, 8, 2, 2), 1.2), ((2, 1, 9, 9), (2, 2, 3, 2), 40.0)],
)
def test_the_gather_form_samples_as_torch_does(
    value_shape: tuple[int, ...], grid_shape: tuple[int, ...], reach: float
) -> None:
    """Case V03: locations inside, at the border and outside the map."""
    generator = torch.Generator().manual_seed(len(value_shape) + value_shape[0])
    value = torch.randn(value_shape, generator=generator)
    grid = (torch.rand(grid_shape, generator=generator) * 2 - 1) * reach
    model = exported(Sampler(), value, grid)
    assert replace_grid_samples(model) == 1
    counts = op_types(model)
    assert counts["GridSample"] == 0
    assert {"Pad", "Gather", "Mul", "Add"} <= counts.keys()
    assert lint(ir.to_proto(model)).errors == ()
    assert np.abs(run(model, value, grid) - Sampler()(value, grid).numpy()).max() <= LIMIT


def test_the_corners_and_centers_of_pixels_are_exact() -> None:
    """A location on the center of a pixel is that pixel; half a pixel outside the corner it is a quarter of it."""
    value = torch.arange(1.0, 7.0).view(1, 1, 2, 3)
    centers = torch.tensor([[-2 / 3, -0.5], [2 / 3, 0.5], [-1.0, -1.0], [1.0, 1.0]]).view(1, 1, 4, 2)
    model = exported(Sampler(), value, centers)
    replace_grid_samples(model)
    np.testing.assert_allclose(run(model, value, centers).ravel(), [1, 6, 0.25, 1.5], atol=LIMIT)


@pytest.mark.parametrize("options", [{"mode": "nearest"}, {"padding_mode": "border"}, {"align_corners": True}])
def test_a_form_that_is_not_known_is_refused(options: dict[str, object]) -> None:
    model = exported(Sampler(**options), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 1, 2))
    with pytest.raises(ExportError, match="has no gather form"):
        replace_grid_samples(model)


def test_a_detector_exports_without_grid_sample_and_keeps_its_outputs(tmp_path: Path) -> None:
    options = FamilyOptions(family="deim", size_hw=(64, 64))
    loaded = load_model(read_checkpoint(GOLDEN / "toy_deim.pth"), options)
    graphs = {
        form: export_graphs(loaded, [1], tmp_path / form, forms=GraphForms(deform=form), progress=lambda text: None)[0]
        for form in ("grid_sample", "gather")
    }
    assert graphs["grid_sample"].lint.op_counts["GridSample"] > 0
    assert "GridSample" not in graphs["gather"].lint.op_counts
    assert not any("GridSample" in finding.message for finding in graphs["gather"].lint.warnings)
    images = np.random.default_rng(0).random((1, 3, 64, 64), np.float32)
    outputs = [onnxruntime.InferenceSession(str(graph.path)).run(None, {"images": images}) for graph in graphs.values()]
    for plain, gathered in zip(*outputs, strict=True):
        np.testing.assert_allclose(gathered, plain, atol=1e-4)


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.options = options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize("opset", [18, 23])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
def test_explicit_attention_scales_the_query_before_the_first_product(opset: int, options: dict[str, object]) -> None:
    """Case V06."""
    torch.manual_seed(opset)
    module, x = Attention(**options).eval(), torch.randn(2, 5, 16)
    model = exported(module, x, opset=opset, explicit=True)
    counts = op_types(model)
    assert counts["Attention"] == 0
    assert counts["Softmax"] == 1
    softmax = next(node for node in model.graph if node.op_type == "Softmax")
    products = [node for node in model.graph if node.op_type == "MatMul"][-2:]
    scale = products[0].inputs[0].producer()
    assert scale is not None
    assert scale.op_type == "Mul"
    key = products[0].inputs[1].producer()
    assert key is not None
    assert key.op_type == "Transpose"
    assert (
        list(model.graph).index(products[0]) < list(model.graph).index(softmax) < list(model.graph).index(products[1])
    )
    assert np.abs(run(model, x) - module(x).detach().numpy()).max() <= 1e-5


def test_the_fused_form_leaves_the_call_to_the_exporter() -> None:
    counts = op_types(exported(Attention(), torch.randn(1, 3, 16), opset=23))
    assert (counts["Attention"], counts["Softmax"]) == (1, 0)


def test_scaling_first_keeps_half_precision_in_range() -> None:
    """Case V06: q = k = 40 over 64 channels."""
    x = torch.full((1, 64), 40.0, dtype=torch.float16)
    assert (x @ x.T).isinf().all()
    assert float((x * 64**-0.5) @ x.T) == 12800


@pytest.mark.parametrize("kind", ["none", "bool", "float", "causal", "gqa"])
def test_written_out_attention_equals_the_fused_call(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, heads, 6, 8, generator=generator) for heads in (4, 2, 2))
    if kind != "gqa":
        k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
    mask = torch.rand(6, 6, generator=generator) < 0.5
    mask.fill_diagonal_(True)
    options: dict[str, object] = {
        "none": {},
        "bool": {"attn_mask": mask},
        "float": {"attn_mask": torch.randn(6, 6, generator=generator)},
        "causal": {"is_causal": True},
        "gqa": {"enable_gqa": True},
    }[kind]
    difference = (attention(q, k, v, **options) - F.scaled_dot_product_attention(q, k, v, **options)).abs().max()
    assert float(difference) <= LIMIT
