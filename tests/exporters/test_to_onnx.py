from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from torch import nn

from vtk.errors import ExportError, LintError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Family, ModelSpec, OutputSpec
from vtk.exporters.load import LoadedModel, LoadReport, fill
from vtk.exporters.to_onnx import GraphFile, check_reference, example_images, export_graphs
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

SIZE = 32
TRACED_TABLES = {"If", "Loop", "Range", "Tile", "Sin", "Cos", "Pow", "ConstantOfShape"}


class Attention(nn.Module):
    """A patch embedding, one pre-norm attention block with rotated queries and keys, and a pooled output."""

    def __init__(self, size: int = SIZE, dim: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, 8)
        self.norm = nn.LayerNorm(dim)
        self.rope = Rope((size // 8) ** 2, dim)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.head = nn.Linear(dim, 16)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        turned = self.rope(self.norm(tokens))
        tokens = tokens + self.attention(turned, turned, tokens, need_weights=False)[0]
        return self.head(tokens), tokens.mean(1)


class Rope(nn.Module):
    """Rotary embedding traced from Range and Tile (cases V07, V08)."""

    def __init__(self, length: int, dim: int) -> None:
        super().__init__()
        self.length, self.dim = length, dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = 1.0 / 100.0 ** (torch.arange(0, self.dim, 2, device=x.device).float() / self.dim)
        angles = torch.arange(self.length, device=x.device).float().outer(rates).tile((1, 2))
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


class Detector(nn.Module):
    """Sampled features, the best positions by score, and what lies there."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 4, 1)
        self.score = nn.Conv2d(8, 1, 1)
        self.shift = nn.Conv2d(8, 2, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(images)
        grid = self.shift(features).tanh().permute(0, 2, 3, 1)
        sampled = F.grid_sample(features, grid, align_corners=False)
        scores, where = self.score(sampled).flatten(1).topk(5)
        rows = sampled.flatten(2).transpose(1, 2).gather(1, where[..., None].expand(-1, -1, 8))
        return scores, rows


class BakedBatch(nn.Module):
    """Writes the batch size into the graph, as D-FINE and RF-DETR do (cases V19, V20)."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 4, 6))
        self.body = nn.Conv2d(3, 6, 8, 8)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        batch = int(images.shape[0])
        tokens = self.body(images).reshape(batch, 6, 16).transpose(1, 2)
        queries = self.queries.tile([batch, 1, 1])
        index = (queries @ tokens.transpose(1, 2)).argmax(-1)
        return (torch.gather(tokens, 1, index[..., None].expand(batch, 4, 6)),)


class Lambda(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.body = nn.Conv2d(3, 4, 8, 8)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.function(self.body(images)),)


def loaded(wrapper: nn.Module, outputs: Sequence[str] = ("out",), size: int = SIZE) -> LoadedModel:
    spec = ModelSpec(
        family="tiny",
        variant="tiny",
        layout="tiny",
        task="embed",
        config={},
        input_hw=(size, size),
        recipe=Recipe((size, size)),
        post=PostRecipe("embed"),
        outputs=tuple(OutputSpec(name, "tokens", 1e-5) for name in outputs),
    )
    wrapper.eval().requires_grad_(False)
    return LoadedModel(cast(Family, None), spec, wrapper, LoadReport(0, 0, (), ()), cast(Checkpoint, None))


def export(model: LoadedModel, batches: Sequence[int], folder: Path, opset: int = 18) -> tuple[GraphFile, ...]:
    return export_graphs(model, batches, folder, opset=opset, progress=lambda line: None)


def run(path: Path, images: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray[Any, Any]] = session.run(None, {"images": images.numpy()})
    return outputs


def reference(model: LoadedModel, images: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    with torch.inference_mode():
        return [output.numpy() for output in model.wrapper(images)]


def attention() -> LoadedModel:
    torch.manual_seed(0)
    return loaded(Attention(), ("tokens", "pooled"))


def detector() -> LoadedModel:
    torch.manual_seed(0)
    return loaded(Detector(), ("scores", "rows"))


MODELS = {"attention": attention, "detector": detector, "baked batch": lambda: loaded(BakedBatch())}
BATCHES = (1, 3, 8)


@dataclass(frozen=True)
class Exported:
    model: LoadedModel
    folder: Path
    files: tuple[GraphFile, ...]

    def file(self, batch: int) -> GraphFile:
        return next(file for file in self.files if file.batch == batch)


@pytest.fixture(scope="module", params=MODELS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model, folder = MODELS[request.param](), tmp_path_factory.mktemp("graphs")
    return Exported(model, folder, export(model, (8, 1, 3, 1), folder))


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model, folder = attention(), tmp_path_factory.mktemp("vit")
    return Exported(model, folder, export(model, (1, 3), folder))


def compare(file: GraphFile, model: LoadedModel, atol: float = 1e-5) -> None:
    images = torch.randn(file.batch, 3, *model.spec.input_hw)
    for got, expected in zip(run(file.path, images), reference(model, images), strict=True):
        np.testing.assert_allclose(got, expected, atol=atol, rtol=0)


def test_every_batch_size_reproduces_the_model_on_fresh_inputs(exported: Exported) -> None:
    assert [(file.batch, file.path.name) for file in exported.files] == [(n, f"model.b{n}.onnx") for n in BATCHES]
    torch.seed()
    for file in exported.files:
        compare(file, exported.model)


def test_rows_do_not_touch_each_other(exported: Exported) -> None:
    path = exported.file(3).path
    torch.seed()
    images = torch.randn(3, 3, SIZE, SIZE)
    poisoned = images.clone()
    poisoned[0], poisoned[2] = 1e4, torch.nan
    same = images[1:2].expand(3, -1, -1, -1).contiguous()
    for plain, strange, equal in zip(run(path, images), run(path, poisoned), run(path, same), strict=True):
        np.testing.assert_allclose(strange[1], plain[1], atol=1e-6, rtol=0)
        for row in equal:
            np.testing.assert_allclose(row, plain[1], atol=1e-6, rtol=0)


def test_v19_v20_a_graph_refuses_another_batch(exported: Exported) -> None:
    """A batch size written into the graph is right at that size and never offered for another."""
    for batch in (1, 3):
        with pytest.raises(InvalidArgument, match="invalid dimensions"):
            run(exported.file(8).path, torch.rand(batch, 3, SIZE, SIZE))


def test_shapes_and_names_are_fixed(vit: Exported) -> None:
    file = vit.file(3)
    graph = onnx.load(file.path, load_external_data=False).graph
    values = (*graph.input, *graph.output)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    assert shapes == {"images": [3, 3, SIZE, SIZE], "tokens": [3, 16, 16], "pooled": [3, 32]}
    assert {value.type.tensor_type.elem_type for value in values} == {onnx.TensorProto.FLOAT}
    assert file.num_nodes == len(graph.node) == sum(file.lint.op_counts.values())
    assert file.sha256 == hashlib.sha256(file.path.read_bytes()).hexdigest()


class Everything(nn.Module):
    """Both tiny models at once: every operator that differs between opsets."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.detector = Attention(), Detector()

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*self.attention(images), *self.detector(images))


@pytest.mark.parametrize("opset", range(17, 24))
def test_v10_every_offered_opset_is_right_and_keeps_layer_norm_whole(opset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = loaded(Everything(), ("tokens", "pooled", "scores", "rows"))
    (file,) = export(model, (2,), tmp_path, opset)
    assert [(item.domain, item.version) for item in onnx.load(file.path).opset_import] == [("", opset)]
    assert (file.opset, file.lint.op_counts["LayerNormalization"]) == (opset, 1)
    assert not {"Pow", "Sqrt", "ReduceSumSquare"} & set(file.lint.op_counts)
    compare(file, model)


def test_opset_17_is_refused_where_it_lacks_the_operator(tmp_path: Path) -> None:
    def older(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.amax(1, keepdim=True) + x.chunk(2, dim=1)[0], scale_factor=2.0, mode="nearest")

    model = loaded(Lambda(older))
    compare(export(model, (1,), tmp_path, 17)[0], model)
    with pytest.raises(ExportError, match=r"opset 17.*--opset 18"):
        export(loaded(Lambda(lambda x: F.fold(x.flatten(2), (5, 5), 2))), (1,), tmp_path, 17)


@pytest.mark.parametrize("size", [32, 64])
def test_v07_rotary_tables_are_constants(size: int, tmp_path: Path) -> None:
    model = loaded(Attention(size), ("tokens", "pooled"), size)
    (file,) = export(model, (1,), tmp_path)
    assert not set(file.lint.op_counts) & {*TRACED_TABLES, "Cast", "Identity"}
    compare(file, model, atol=1e-6)


def test_v08_two_classes_of_one_name_are_both_baked(tmp_path: Path) -> None:
    other = type("Rope", (Rope,), {"__module__": "elsewhere"})
    model = attention()
    cast(Attention, model.wrapper).head = nn.Sequential(other(16, 32), nn.Linear(32, 16)).eval().requires_grad_(False)
    (file,) = export(model, (1,), tmp_path)
    assert not set(file.lint.op_counts) & TRACED_TABLES
    compare(file, model)


def test_v01_grid_sample_is_listed(tmp_path: Path) -> None:
    (file,) = export(detector(), (1,), tmp_path)
    assert [str(finding)[:13] for finding in file.lint.warnings] == ["GridSample ×1"]


@pytest.mark.parametrize("opset", [16, 11, 24])
def test_other_opsets_are_refused_before_any_work(opset: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="half precision" if opset < 17 else "newer") as caught:
        export(attention(), (1,), tmp_path / "out", opset)
    assert "--opset 17 to 23" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("batches", [(), (0,), (1, -2), "1,8", (1.5,), (True,), (None,)])
def test_impossible_batches_are_refused(batches: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="integers above 0"):
        export(attention(), batches, tmp_path)


def test_a_batch_that_no_memory_holds_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot be exported at batch 10{12}: \w+: .*memory"):
        export(attention(), (10**12,), tmp_path)


def external(path: Path) -> dict[str, dict[str, str]]:
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return {tensor.name: {item.key: item.value for item in tensor.external_data} for tensor in tensors}


def test_graphs_share_one_file_of_weights(vit: Exported) -> None:
    model, (small, large) = vit.model, vit.files
    weights = vit.folder / "model.weights"
    assert sorted(path.name for path in vit.folder.iterdir()) == ["model.b1.onnx", "model.b3.onnx", "model.weights"]
    assert small.weights == large.weights == weights
    first, second = external(small.path), external(large.path)
    assert first["patch.weight"] == second["patch.weight"]
    parameters = sum(parameter.nbytes for parameter in model.wrapper.parameters() if parameter.nbytes > 1024)
    assert parameters <= weights.stat().st_size < parameters + 8 * 1024
    for entries in (first, second):
        placed = [entry for entry in entries.values() if entry]
        assert all(entry["location"] == "model.weights" and int(entry["offset"]) % 64 == 0 for entry in placed)
        assert len(placed) < len(entries)


def test_external_tensors_hold_the_weights_bit_for_bit(vit: Exported) -> None:
    for file in vit.files:
        stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(file.path).graph.initializer}
        np.testing.assert_array_equal(stored["patch.weight"], vit.model.wrapper.get_parameter("patch.weight").numpy())
        onnx.checker.check_model(str(file.path), full_check=True)


class Pool(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, width)
        self.wide = nn.Linear(width, width)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.wide(self.head(images.mean((2, 3)))),)


def test_large_tensors_can_be_memory_mapped(tmp_path: Path) -> None:
    model = loaded(Pool(530))
    (file,) = export(model, (1,), tmp_path)
    placed = [entry for entry in external(file.path).values() if entry]
    large = [entry for entry in placed if int(entry["length"]) >= 1 << 20]
    assert (len(placed), len(large)) == (4, 1)
    assert int(large[0]["offset"]) % 65536 == 0
    compare(file, model)


def test_small_models_need_no_weights_file(tmp_path: Path) -> None:
    model = loaded(Pool(16))
    (file,) = export(model, (1,), tmp_path)
    assert file.weights is None
    assert [path.name for path in tmp_path.iterdir()] == ["model.b1.onnx"]
    compare(file, model)


def test_openvino_reads_the_shared_weights(vit: Exported) -> None:
    openvino = pytest.importorskip("openvino")
    for file in vit.files:
        compiled = openvino.Core().compile_model(str(file.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        images = torch.randn(file.batch, 3, SIZE, SIZE)
        result = compiled({"images": images.numpy()})
        for index, expected in enumerate(reference(vit.model, images)):
            np.testing.assert_allclose(result[index], expected, atol=1e-5, rtol=0)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_equal_exports_have_equal_bytes(vit: Exported, tmp_path: Path) -> None:
    """Also from another process with another hash seed, another folder and another order of batch sizes."""
    script = (
        "import importlib.util, pathlib, sys\n"
        "spec = importlib.util.spec_from_file_location('tiny', sys.argv[1])\n"
        "tiny = importlib.util.module_from_spec(spec); sys.modules['tiny'] = tiny; spec.loader.exec_module(tiny)\n"
        "tiny.export(tiny.attention(), (3, 1), pathlib.Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", script, __file__, str(tmp_path / "second" / "deep")]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}, cwd=tmp_path)
    assert digests(vit.folder) == digests(tmp_path / "second" / "deep")


def test_graphs_hold_no_trace_of_this_machine(tmp_path: Path) -> None:
    (file,) = export(attention(), (1,), tmp_path)
    data = file.path.read_bytes()
    for word in (
        str(Path(__file__).parent),
        str(Path.cwd()),
        str(tmp_path),
        ".py",
        "site-packages",
        "stack_trace",
        "pkg.torch",
    ):
        assert word.encode() not in data
    assert onnx.load(file.path, load_external_data=False).producer_name == "vtk"


def test_progress_names_every_batch(tmp_path: Path) -> None:
    lines: list[str] = []
    export_graphs(loaded(Pool(4)), (1, 2), tmp_path, progress=lines.append)
    assert [line for line in lines if "batch 1" in line]
    assert [line for line in lines if "model.b2.onnx" in line]


def test_training_mode_is_refused_and_never_entered(tmp_path: Path) -> None:
    model = attention()
    export(model, (1,), tmp_path)
    assert not any(module.training for module in model.wrapper.modules())
    cast(Attention, model.wrapper).attention.train()
    with pytest.raises(ExportError, match=r"training mode: attention"):
        export(model, (1,), tmp_path)


def test_a_model_that_the_exporter_woke_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old exporter could leave an inner model in training mode, and the reference then changed from run to run."""
    model, whole = attention(), torch.onnx.export

    def wake(*args: Any, **kwargs: Any) -> Any:
        program = whole(*args, **kwargs)
        cast(Attention, model.wrapper).attention.train()
        return program

    monkeypatch.setattr(torch.onnx, "export", wake)
    with pytest.raises(ExportError, match="training mode: attention"):
        export(model, (1,), tmp_path)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        self.calls += 1
        return (images.mean((2, 3)) + self.calls * 1e-6,)


def test_a_reference_that_does_not_repeat_itself_is_refused(tmp_path: Path) -> None:
    check_reference(attention())
    noisy = loaded(Lambda(lambda x: F.dropout(x, 0.5, training=True)))
    for model in (loaded(Counting()), noisy):
        with pytest.raises(ExportError, match="differs between two runs"):
            export(model, (1,), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x * torch.nan, "NaN"),
        (lambda x: x.double(), "must be float32"),
        (lambda x: x.flatten(0, 1), "batch first"),
    ],
)
def test_unusable_outputs_are_refused(function: Callable[[torch.Tensor], torch.Tensor], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        check_reference(loaded(Lambda(function)))


def test_a_wrong_number_of_outputs_is_refused() -> None:
    with pytest.raises(ExportError, match=r"returned 2 tensors, expected \['only'\]"):
        check_reference(loaded(Detector(), ("only",)))


def test_example_images_repeat() -> None:
    model = attention()
    torch.testing.assert_close(example_images(model, batch=2), example_images(model, batch=2), rtol=0, atol=0)


def test_float64_is_refused_with_the_node_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(LintError, match=r"made by Cast '[^']+'\) is DOUBLE"):
        export(loaded(Lambda(lambda x: x.double().sin().float())), (1,), tmp_path)


def test_constant_float64_tables_are_folded_away(tmp_path: Path) -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(4, dtype=torch.float64).sin().float()[None, :, None, None]

    model = loaded(Lambda(shifted))
    (file,) = export(model, (1,), tmp_path)
    assert sorted(file.lint.op_counts) == ["Add", "Conv"]
    compare(file, model, atol=1e-6)


def test_data_dependent_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        export(loaded(Lambda(lambda x: (x > 0).nonzero().float()[None])), (1,), tmp_path)


def test_an_operator_without_a_translation_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be exported at batch 1") as caught:
        export(loaded(Lambda(lambda x: torch.linalg.eigvalsh(x))), (1,), tmp_path)
    assert "\n" not in str(caught.value)
    assert "eigh" in str(caught.value)


def test_v37_bfloat16_checkpoints_become_float32(tmp_path: Path) -> None:
    class Tiny(Family):
        name, title, layouts = "tiny", "tiny", ("tiny",)

    Tiny.__abstractmethods__ = frozenset()
    stored = {key: value.bfloat16() for key, value in Attention().state_dict().items()}
    wrapper = Attention()
    fill(wrapper, stored, Tiny(), source="tiny.pth")
    model = loaded(wrapper, ("tokens", "pooled"))
    (file,) = export(model, (1,), tmp_path)
    kinds = {tensor.data_type for tensor in onnx.load(file.path).graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in kinds
    compare(file, model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_v37_a_half_precision_module_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    model = attention()
    cast(Attention, model.wrapper).head.to(dtype)
    with pytest.raises(ExportError, match=r"half precision: head\.weight, head\.bias"):
        export(model, (1,), tmp_path)
