"""Every parameter accounted for: cases V29, V30, V32, V37."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from vtk.errors import UnknownFamilyError, UsageError, WeightsMismatchError
from vtk.exporters import registry
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.family import Family, FamilyOptions, ModelSpec, OutputSpec
from vtk.exporters.load import LoadedModel, LoadReport, fill, load_model
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

Tensors = dict[str, torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.bn = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("anchors", torch.zeros(2))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.bn(self.linear(images)) * self.scale,)


class Stub(Family):
    name: ClassVar[str] = "stub"
    title: ClassVar[str] = "Stub net"
    aliases: ClassVar[tuple[str, ...]] = ("other-stub",)
    layouts: ClassVar[tuple[str, ...]] = ("plain",)
    # `scale` is listed by mistake: a parameter is never benign.
    ignorable: ClassVar[tuple[str, ...]] = ("table", "scale")
    unused: ClassVar[tuple[str, ...]] = (r"aux\..*",)

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        return "plain" if "linear.weight" in checkpoint.tensors else None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        outputs = (OutputSpec("out", "embedding", 1e-4),)
        return ModelSpec(
            "stub", "tiny", layout, "embed", {}, (1, 3), Recipe(size_hw=(1, 3)), PostRecipe("embed"), outputs
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> Tensors:
        return dict(checkpoint.tensors)

    def build(self, spec: ModelSpec) -> nn.Module:
        return Net().eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        return nn.Sequential(module)


class ExactStub(Stub):
    exact: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def only_the_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "all_families", lambda: (Stub(),))


@pytest.fixture
def weights() -> Tensors:
    state = Net().state_dict()
    return {key: torch.randn(value.shape) if value.is_floating_point() else value for key, value in state.items()}


def without(weights: Tensors, *names: str) -> Tensors:
    return {key: value for key, value in weights.items() if key not in names}


def load(path: Path, content: object, **options: str) -> LoadedModel:
    torch.save(content, path / "x.pth")
    return load_model(read_checkpoint(path / "x.pth", **options), FamilyOptions())


def fill_net(weights: Tensors, family: Family | None = None) -> tuple[Net, LoadReport]:
    net = Net()
    return net, fill(net, weights, family or Stub(), source="x.pth")


def test_a_whole_checkpoint_fills_the_model(weights: Tensors) -> None:
    net, report = fill_net(weights)
    assert (report.fraction, report.missing, report.unexpected) == (1.0, (), ())
    assert report.matched == 12 + 4 + 4 * 4 + 1 + 1 + 4 + 2
    assert all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())


def test_benign_buffers_may_be_missing(weights: Tensors) -> None:
    """Cases V30 and V32: a table that the model computes, and the counters of BatchNorm."""
    net, report = fill_net(without(weights, "table", "bn.num_batches_tracked"))
    assert report.missing == ()
    assert torch.equal(net.table, torch.arange(4.0))


@pytest.mark.parametrize("name", ["linear.weight", "linear.bias", "bn.weight", "bn.running_var", "anchors", "scale"])
def test_any_other_missing_tensor_fails_however_small(weights: Tensors, name: str) -> None:
    """Case V30: `scale` is 1 of 40 elements and a parameter, so that no list of exceptions covers it."""
    with pytest.raises(WeightsMismatchError, match=rf"missing from the checkpoint \(1\): {name}\."):
        fill_net(without(weights, name))


def test_a_failed_load_leaves_the_model_alone(weights: Tensors) -> None:
    net = Net()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(WeightsMismatchError):
        fill(net, without(weights, "scale"), Stub(), source="x.pth")
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_wrong_shapes_are_named_with_both_shapes(weights: Tensors) -> None:
    with pytest.raises(WeightsMismatchError, match=r"linear\.weight \(expected \(4, 3\), came \(3, 4\)\)"):
        fill_net({**weights, "linear.weight": torch.ones(3, 4)})


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.bool, torch.cfloat], ids=str)
def test_quantized_codes_and_complex_numbers_are_not_taken_for_weights(weights: Tensors, dtype: torch.dtype) -> None:
    with pytest.raises(WeightsMismatchError, match=r"linear\.weight \(expected floating point, came \w+\)"):
        fill_net({**weights, "linear.weight": torch.ones(4, 3).to(dtype)})


def test_an_integer_constant_fills_a_float(weights: Tensors) -> None:
    net, _ = fill_net({**weights, "scale": torch.tensor([4])})
    assert net.scale.item() == 4.0


def test_the_limit_of_99_percent(weights: Tensors) -> None:
    """The stub and a layer have 4000 elements; up to 40 more may have no place."""
    net = Net()
    net.add_module("big", nn.Linear(396, 10, bias=False))
    given = {**weights, "big.weight": torch.ones(10, 396)}
    report = fill(net, {**given, "stray": torch.ones(40)}, Stub(), source="x.pth")
    assert (report.matched, report.total, report.unexpected) == (4000, 4040, ("stray",))
    with pytest.raises(WeightsMismatchError, match=r"98\.99% fit.*not used by the model \(1\): stray"):
        fill(net, {**given, "stray": torch.ones(41)}, Stub(), source="x.pth")


def test_what_the_family_calls_unused_does_not_count(weights: Tensors) -> None:
    _, report = fill_net({**weights, "aux.head.weight": torch.ones(500), "aux.num_batches_tracked": torch.tensor(3)})
    assert (report.fraction, report.unexpected) == (1.0, ())


def test_an_exact_family_refuses_the_smallest_stray_tensor(weights: Tensors) -> None:
    stray = {**weights, "norm.bias": torch.ones(0)}
    fill_net(stray)
    with pytest.raises(WeightsMismatchError, match=r"not used by the model \(1\): norm\.bias"):
        fill_net(stray, ExactStub())


def test_both_lists_are_shown_and_cut_sensibly(weights: Tensors) -> None:
    """Case V29: foreign names must not leave random weights behind."""
    foreign = {f"encoder.{index:03}.weight": torch.ones(9) for index in range(100)}
    with pytest.raises(WeightsMismatchError) as caught:
        fill_net({"linear.weight": torch.ones(4, 3), **foreign})
    text = str(caught.value)
    assert "x.pth was recognized as Stub net" in text
    assert "missing from the checkpoint (7): anchors, bn.bias" in text
    assert "not used by the model (100): encoder.000.weight, " in text
    assert "encoder.019.weight, …" in text
    assert "encoder.020.weight" not in text


def test_wrapped_checkpoints_load_fully(tmp_path: Path, weights: Tensors) -> None:
    """Case V29: DDP, compile and EMA wrappers."""
    for prefix in ("module.", "module._orig_mod.", "model.", "ema.module."):
        loaded = load(tmp_path, {prefix + key: value for key, value in weights.items()})
        assert loaded.report.fraction == 1.0
        assert torch.equal(loaded.wrapper[0].linear.weight, weights["linear.weight"])


def test_the_average_is_what_runs(tmp_path: Path, weights: Tensors) -> None:
    """Case V32."""
    raw = {key: value + 1 for key, value in weights.items()}
    content = {"model": raw, "ema": {"module": weights}}
    chosen, asked = load(tmp_path, content), load(tmp_path, content, weights="model")
    assert (chosen.checkpoint.weights, asked.checkpoint.weights) == ("ema.module", "model")
    assert torch.equal(chosen.wrapper[0].linear.weight, weights["linear.weight"])
    assert torch.equal(asked.wrapper[0].linear.weight, raw["linear.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_half_weights_run_as_float32(tmp_path: Path, weights: Tensors, dtype: torch.dtype) -> None:
    """Case V37."""
    stored = {key: value.to(dtype) if value.is_floating_point() else value for key, value in weights.items()}
    loaded = load(tmp_path, stored)
    assert {value.dtype for value in loaded.wrapper.state_dict().values()} == {torch.float32, torch.int64}
    assert torch.equal(loaded.wrapper[0].linear.weight, stored["linear.weight"].float())
    assert loaded.checkpoint.tensors["linear.weight"].dtype == dtype
    (output,) = loaded.wrapper(torch.randn(2, 3))
    assert output.dtype == torch.float32


def test_the_wrapper_is_frozen_and_in_eval_mode(tmp_path: Path, weights: Tensors) -> None:
    wrapper = load(tmp_path, weights).wrapper
    assert not any(module.training for module in wrapper.modules())
    assert not any(parameter.requires_grad for parameter in wrapper.parameters())


def make_checkpoint(*names: str) -> Checkpoint:
    tensors = dict.fromkeys(names, torch.ones(1))
    return Checkpoint(Path("x.pth"), "pth", tensors, "", "", "flat", ("flat",))


def test_a_family_can_be_asked_for_by_name_or_alias() -> None:
    for name in ("stub", "other-stub"):
        family, layout = registry.recognize(make_checkpoint("linear.weight"), FamilyOptions(family=name))
        assert (family.name, layout) == ("stub", "plain")
    with pytest.raises(UsageError, match=r"Unknown family 'yolo'.*Supported: other-stub, stub"):
        registry.recognize(make_checkpoint("linear.weight"), FamilyOptions(family="yolo"))
    with pytest.raises(UnknownFamilyError, match=r"1 tensors \(other, …\) are not recognized as 'stub'"):
        registry.recognize(make_checkpoint("other"), FamilyOptions(family="stub"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("sam_mask_decoder.iou_token.weight", "looks like SAM 2, which vtk does not support yet"),
        ("conv1.weight", r"1 tensors \(conv1\.weight, …\) are not recognized"),
    ],
)
def test_foreign_models_get_one_line_and_the_list(name: str, match: str) -> None:
    """Case V25."""
    with pytest.raises(UnknownFamilyError, match=rf"{match}.*Supported families: Stub net") as caught:
        registry.recognize(make_checkpoint(name), FamilyOptions())
    assert caught.value.exit_code == 2
