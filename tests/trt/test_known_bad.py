"""The table of releases that build wrong engines: right answers of users' reports."""

import pytest

from vtk.errors import BackendError
from vtk.exporters.graph_forms import GraphForms
from vtk.exporters.to_tensorrt_known_bad import TABLE, check_known_bad, known_bad

GATHER, GRID = GraphForms(deform="gather").names, GraphForms().names


@pytest.mark.parametrize("version", ["10.3.0", "10.4.0.26"])
@pytest.mark.parametrize("family", ["dinov3-vit", "dinov3-convnext", "deimv2"])
def test_dinov3_is_refused_where_its_engines_are_wrong(version: str, family: str) -> None:
    """Cases V04, V05, V07, V09: the advice names the releases that are right."""
    with pytest.raises(BackendError, match=r"known to be wrong.*#4742.*10\.6 or later for DEIMv2, 10\.16"):
        check_known_bad("tensorrt", version, (family, "S"), GATHER)


def test_dinov3_is_known_by_its_variant_too() -> None:
    with pytest.raises(BackendError, match=r"wrong for timm vit_small_patch16_dinov3\.lvd1689m"):
        check_known_bad("tensorrt", "10.4.0", ("timm", "vit_small_patch16_dinov3.lvd1689m"), GATHER)


def test_later_releases_warn_for_dinov3_and_are_silent_once_it_is_right() -> None:
    assert check_known_bad("tensorrt", "10.6.0", ("deimv2", "S"), GATHER) == []
    (warning,) = check_known_bad("tensorrt", "10.13.3.9", ("dinov3-vit", "S"), GATHER)
    assert "10.16 or later" in warning
    assert check_known_bad("tensorrt", "10.16.1.11", ("dinov3-vit", "S"), GATHER) == []
    assert check_known_bad("tensorrt", "10.3.0", ("dinov2", "S"), GATHER) == []


@pytest.mark.parametrize("version", ["10.13.3.9", "10.14.1", "11.1.0", "11.4.0.106"])
@pytest.mark.parametrize("family", ["dfine", "deim", "deimv2", "rtdetrv2", "rt-detr", "rfdetr"])
def test_grid_sample_is_a_risk_that_the_gather_form_removes(version: str, family: str) -> None:
    """Case V01."""
    (warning,) = check_known_bad("tensorrt", version, (family, "S"), GRID)
    assert "#4813" in warning
    assert "--deform gather" in warning
    assert check_known_bad("tensorrt", version, (family, "S"), GATHER) == []


def test_the_fused_attention_of_one_release_is_told() -> None:
    """Case V06."""
    assert check_known_bad("tensorrt", "10.7.0.23", ("timm", "S"), GRID) == []
    (warning,) = check_known_bad("tensorrt", "10.7.0.23", ("timm", "S"), GraphForms(attn="fused").names)
    assert "#4333" in warning
    assert check_known_bad("tensorrt", "10.8.0", ("timm", "S"), GraphForms(attn="fused").names) == []


def test_models_without_a_row_are_built_without_a_word() -> None:
    for kind, version in (("tensorrt", "11.4.0.106"), ("tensorrt_rtx", "1.7.1.116")):
        assert known_bad(kind, version, "yolov8") == ()
        assert known_bad(kind, version, "dinov3-vit") == ()


def test_every_row_can_be_acted_on() -> None:
    for row in TABLE:
        assert row.source
        assert row.advice
        assert row.before is None or row.first < row.before
