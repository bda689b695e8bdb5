"""SAM3's tracker on one picture against transformers' `Sam3TrackerModel` with the same random weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from vtk.cli.main import main
from vtk.errors import AmbiguousError, CheckpointError, WeightsMismatchError
from vtk.exporters.load import LoadedModel
from vtk.postprocess.points import select_mask

Load = Callable[..., LoadedModel]
Tensors = dict[str, torch.Tensor]
ATOL = {"point_masks": 1e-5, "point_ious": 1e-6, "point_object": 1e-6}  # a tenth of what a bundle must hold and less

ONE = {"points": [[60.0, 100.0]], "labels": [1]}
TWO = {"points": [[60.0, 100.0], [10.0, 200.0]], "labels": [1, 0]}
BOX = {"box": [20.0, 30.0, 150.0, 160.0]}
FULL = {"points": [[float(20 * i + 3), float(200 - 25 * i)] for i in range(8)], "labels": [1, 0, 1, 1, 0, 0, 1, 1]}
CASES = {"one": ONE, "two": TWO, "box": BOX, "box and points": {**TWO, **BOX}, "all slots": FULL}


@pytest.fixture(scope="module")
def tracker(sam3_tracker: ModuleType, golden_dir: Path) -> Any:
    return sam3_tracker.make_tracker(golden_dir)


@pytest.fixture(scope="module")
def with_tracker(sam3_tracker: ModuleType, golden_dir: Path, tracker: Any) -> Tensors:
    tensors: Tensors = sam3_tracker.official_tensors(golden_dir, tracker)
    return tensors


@pytest.fixture(scope="module")
def hub(sam3_tracker: ModuleType, golden_dir: Path, tracker: Any) -> Tensors:
    tensors: Tensors = sam3_tracker.hub_tensors(golden_dir, tracker)
    return tensors


@pytest.fixture(scope="module")
def stated(sam3_tracker: ModuleType, golden_dir: Path) -> dict[str, Any]:
    config: dict[str, Any] = sam3_tracker.video_config(golden_dir)
    return config


@pytest.fixture(scope="module")
def models(load: Load, with_tracker: Tensors, hub: Tensors, stated: dict[str, Any]) -> Mapping[str, LoadedModel]:
    return {"official": load(with_tracker, stated=stated), "hf": load(hub, stated=stated)}


def slots(case: Mapping[str, Any], side: int, *, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and labels as the part takes them; noise where no point is."""
    given: list[Sequence[float]] = [case["box"][:2], case["box"][2:]] if "box" in case else []
    marks = [2, 3][: len(given)] + list(case.get("labels", []))
    given += case.get("points", [])
    points = torch.rand(1, count, 2)
    labels = torch.full((1, count), -10)
    points[0, : len(given)] = torch.tensor(given) / side
    labels[0, : len(marks)] = torch.tensor(marks)
    return points, labels


def answer(model: LoadedModel, images: torch.Tensor, case: Mapping[str, Any]) -> Tensors:
    with torch.inference_mode():
        maps = model.part("image_encoder")(images)
        outputs = model.part("point_decoder")(*maps[3:], *slots(case, images.shape[-1]))
    return dict(zip(ATOL, outputs, strict=True))


def reference(tracker: Any, images: torch.Tensor, case: Mapping[str, Any]) -> Tensors:
    """The three candidates for one point."""
    prompt = {}
    if "points" in case:
        prompt |= {"input_points": torch.tensor(case["points"])[None, None]}
        prompt |= {"input_labels": torch.tensor(case["labels"])[None, None]}
    if "box" in case:
        prompt |= {"input_boxes": torch.tensor(case["box"])[None, None]}
    with torch.inference_mode():
        found = tracker(pixel_values=images, multimask_output=True, **prompt)
    values = found.pred_masks[:, 0], found.iou_scores[:, 0], found.object_score_logits[:, 0]
    return dict(zip(ATOL, values, strict=True))


@pytest.mark.parametrize("layout", ["official", "hf"])
@pytest.mark.parametrize("name", CASES)
def test_both_layouts_give_the_masks_of_transformers(
    models: Mapping[str, LoadedModel], tracker: Any, layout: str, name: str
) -> None:
    assert models[layout].spec.layout == layout
    assert models[layout].report.fraction == 1
    images = torch.rand(1, 3, 224, 224) * 2 - 1
    found, wanted = answer(models[layout], images, CASES[name]), reference(tracker, images, CASES[name])
    assert wanted["point_masks"].std() > 0.1
    for output, limit in ATOL.items():
        of_one = found[output] if output == "point_object" else found[output][:, 1:]
        torch.testing.assert_close(of_one, wanted[output], atol=limit, rtol=0)


def test_the_first_candidate_is_that_for_several_points(models: Mapping[str, LoadedModel], tracker: Any) -> None:
    tracker.mask_decoder.dynamic_multimask_via_stability = False
    try:
        images = torch.rand(1, 3, 224, 224) * 2 - 1
        with torch.inference_mode():
            points, labels = torch.tensor(TWO["points"])[None, None], torch.tensor(TWO["labels"])[None, None]
            wanted = tracker(pixel_values=images, input_points=points, input_labels=labels, multimask_output=False)
    finally:
        tracker.mask_decoder.dynamic_multimask_via_stability = True
    found = answer(models["official"], images, TWO)
    torch.testing.assert_close(found["point_masks"][:, :1], wanted.pred_masks[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["point_ious"][:, :1], wanted.iou_scores[:, 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_choice_for_several_points_is_that_of_transformers(tracker: Any, scale: float) -> None:
    """Masks of large values are stable, of small ones not."""
    for _ in range(5):
        masks, ious = scale * torch.randn(1, 1, 4, 9, 9), torch.rand(1, 1, 4)
        wanted, score = tracker.mask_decoder._dynamic_multimask_via_stability(masks, ious)
        outputs = {"point_masks": masks[0, 0].numpy(), "point_ious": ious[0, 0].numpy()}
        found = select_mask(outputs, 2)
        assert (found.masks == wanted[0, 0].numpy()).all()
        assert found.scores.tolist() == score[0, 0].tolist()


def test_the_decoder_of_texts_is_the_same_with_a_tracker_beside_it(
    models: Mapping[str, LoadedModel], official_model: LoadedModel
) -> None:
    images = torch.rand(1, 3, 224, 224) * 2 - 1
    with torch.inference_mode():
        maps = official_model.part("image_encoder")(images)
        with_points = models["official"].part("image_encoder")(images)
    assert len(maps) == 3
    assert all(torch.equal(one, other) for one, other in zip(maps, with_points[:3], strict=True))
    assert official_model.spec.config["point_prompts"] is None
    assert "point_slots" not in official_model.spec.config
    assert models["official"].spec.config["point_slots"] == 8
    assert models["official"].spec.outputs == official_model.spec.outputs


@pytest.mark.parametrize(
    "lost", ["tracker.no_mem_embed", "sam2_convs.0.conv_1x1.weight", "gaussian_matrix", "mask_tokens.weight"]
)
def test_a_tracker_without_one_of_its_groups_answers_no_points(
    load: Load, with_tracker: Tensors, stated: dict[str, Any], lost: str
) -> None:
    tensors = {name: value for name, value in with_tracker.items() if not name.endswith(lost)}
    assert len(tensors) == len(with_tracker) - 1
    model = load(tensors, stated=stated)
    assert model.report.fraction == 1
    assert [part.name for part in model.spec.parts] == ["image_encoder", "text_encoder", "decoder"]


def test_every_other_tensor_of_it_must_be_there_and_none_may_be_left_over(
    load: Load, with_tracker: Tensors, stated: dict[str, Any]
) -> None:
    less = dict(with_tracker)
    del less["tracker.sam_mask_decoder.transformer.layers.1.norm4.bias"]
    with pytest.raises(WeightsMismatchError, match=r"points\.decoder\.transformer\.layers\.1\.norm4\.bias"):
        load(less, stated=stated)
    more = {**with_tracker, "tracker.sam_mask_decoder.extra.weight": torch.ones(3)}
    with pytest.raises(WeightsMismatchError, match=r"points\.decoder\.extra\.weight"):
        load(more, stated=stated)


def test_the_memory_of_frames_has_no_place(load: Load, with_tracker: Tensors, stated: dict[str, Any]) -> None:
    memory = {
        "tracker.maskmem_backbone.out_proj.weight": torch.ones(3),
        "tracker.obj_ptr_proj.layers.0.bias": torch.ones(3),
    }
    assert load({**with_tracker, **memory}, stated=stated).report.fraction == 1


def test_the_copy_of_the_position_table_must_be_one(load: Load, hub: Tensors, stated: dict[str, Any]) -> None:
    name = "tracker_model.shared_image_embedding.positional_embedding"
    with pytest.raises(CheckpointError, match="places points and pixels by different tables"):
        load({**hub, name: hub[name] + 1}, stated=stated)


def test_heads_that_no_tensor_tells_are_asked_for(load: Load, with_tracker: Tensors, stated: dict[str, Any]) -> None:
    with pytest.raises(AmbiguousError, match="the heads of the tracker"):
        load(with_tracker, stated=stated["detector_config"])


def test_inspect_says_whether_a_checkpoint_takes_points(
    sam3_tracker: ModuleType,
    golden_dir: Path,
    with_tracker: Tensors,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(tensors: Tensors) -> str:
        path = sam3_tracker.write_official(tmp_path, golden_dir, tensors)
        assert main(["inspect", str(path), "--json"]) == 0
        config = json.loads(capsys.readouterr().out)["config"]
        return json.dumps(config["point_prompts"])

    assert json.loads(told(with_tracker))["slots"] == 8
    assert told({name: value for name, value in with_tracker.items() if "sam_mask_decoder" not in name}) == "null"
