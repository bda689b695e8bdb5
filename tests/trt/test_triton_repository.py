"""The model repository for Triton: its layout, and its text read back by protobuf's own parser."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from tiny_bundles import make_bundle, save_graph

from vtk.bundle import Artifact, Bundle, file_sha256
from vtk.engine_adding import with_engines
from vtk.engine_builds import build_engines
from vtk.engine_choice import EngineRequest
from vtk.errors import UsageError
from vtk.triton_repository import check_repository, write_repository

Install = Callable[..., dict[str, Any]]
FIELD = descriptor_pb2.FieldDescriptorProto


def _message(file: Any, name: str, *fields: tuple[str, int, int, int, str]) -> None:
    message = file.message_type.add(name=name)
    for field, number, kind, label, type_name in fields:
        added = message.field.add(name=field, number=number, type=kind, label=label)
        if type_name:
            added.type_name = type_name


def _model_config() -> Any:
    """The part of Triton's model_config.proto that is used here, with its names and numbers."""
    one, many = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED
    text, whole, sub = FIELD.TYPE_STRING, FIELD.TYPE_INT32, FIELD.TYPE_MESSAGE
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    types = file.enum_type.add(name="DataType")
    names = [
        "INVALID",
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "FP32",
        "FP64",
        "STRING",
        "BF16",
    ]
    for number, name in enumerate(names):
        types.value.add(name=f"TYPE_{name}", number=number)
    enum = (FIELD.TYPE_ENUM, one, ".inference.DataType")
    dims = (FIELD.TYPE_INT64, many, "")
    _message(file, "ModelInput", ("name", 1, text, one, ""), ("data_type", 2, *enum), ("dims", 4, *dims))
    _message(
        file,
        "ModelOutput",
        ("name", 1, text, one, ""),
        ("data_type", 2, *enum),
        ("dims", 3, *dims),
        ("label_filename", 4, text, one, ""),
    )
    _message(file, "All")
    _message(file, "VersionPolicy", ("all", 2, sub, one, ".inference.All"))
    _message(
        file,
        "ModelConfig",
        ("name", 1, text, one, ""),
        ("platform", 2, text, one, ""),
        ("version_policy", 3, sub, one, ".inference.VersionPolicy"),
        ("max_batch_size", 4, whole, one, ""),
        ("input", 5, sub, many, ".inference.ModelInput"),
        ("output", 6, sub, many, ".inference.ModelOutput"),
        ("cc_model_filenames", 9, sub, many, ".inference.ModelConfig.Files"),
    )
    files = file.message_type[-1].nested_type.add(name="Files")
    files.options.map_entry = True
    for field, number in (("key", 1), ("value", 2)):
        files.field.add(name=field, number=number, type=text, label=one)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


MODEL_CONFIG = _model_config()


def read_config(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(encoding="utf-8"), MODEL_CONFIG())


def test_each_batch_size_is_a_model_with_static_shapes(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "my bundle", batches=(1, 8))
    names = write_repository(bundle, tmp_path / "models")
    assert names == ["my-bundle_b1", "my-bundle_b8"]
    for name, batch in zip(names, (1, 8), strict=True):
        config = read_config(tmp_path / "models" / name)
        assert (config.name, config.platform, config.max_batch_size) == (name, "onnxruntime_onnx", 0)
        assert [(item.name, list(item.dims)) for item in config.input] == [("images", [batch, 3, 4, 6])]
        assert [(item.name, list(item.dims)) for item in config.output] == [("logits", [batch, 3])]
        assert config.input[0].data_type == config.output[0].data_type == 11  # TYPE_FP32
        assert config.output[0].label_filename == "labels.txt"
        assert config.version_policy.HasField("all")
        assert (tmp_path / "models" / name / "labels.txt").read_text() == "cat\ndog\nbig bird\n"
        onnxruntime.InferenceSession(str(tmp_path / "models" / name / "1" / "model.onnx"))


def test_a_graph_with_external_weights_becomes_a_folder_of_both(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    model = onnx.load(bundle.path("model.b1.onnx"))
    onnx.save(
        model, bundle.path("model.b1.onnx"), save_as_external_data=True, location="model.weights", size_threshold=0
    )
    write_repository(bundle, tmp_path / "models")
    folder = tmp_path / "models" / "b_b1" / "1" / "model.onnx"
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx", "model.weights"]
    onnxruntime.InferenceSession(str(folder / "model.onnx"))


def test_engines_are_chosen_by_compute_capability(installed: Install, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    for gpu in ("sm_90", "sm_120"):
        installed("11", gpu=gpu)
        built = build_engines(bundle, EngineRequest(), lambda text: None)
        bundle = replace(bundle, manifest=with_engines(bundle.manifest, built))
    write_repository(bundle, tmp_path / "models")
    config = read_config(tmp_path / "models" / "b_b1")
    assert config.platform == "tensorrt_plan"
    assert dict(config.cc_model_filenames) == {"9.0": "model.sm_90.plan", "12.0": "model.sm_120.plan"}
    version = tmp_path / "models" / "b_b1" / "1"
    assert sorted(path.name for path in version.iterdir()) == ["model.sm_120.plan", "model.sm_90.plan"]


def test_engines_of_rtx_are_left_to_the_graphs(installed: Install, tmp_path: Path) -> None:
    installed("rtx")
    bundle = make_bundle(tmp_path / "b")
    built = build_engines(bundle, EngineRequest(("sm_89",)), lambda text: None)
    write_repository(replace(bundle, manifest=with_engines(bundle.manifest, built)), tmp_path / "models")
    assert read_config(tmp_path / "models" / "b_b1").platform == "onnxruntime_onnx"


def with_parts(bundle: Bundle) -> Bundle:
    artifacts = []
    for part in ("image_encoder", "decoder"):
        path = save_graph(bundle.root / f"{part}.b1.onnx")
        artifacts.append(Artifact("onnx", "fp32", 1, path.name, file_sha256(path), {}, "any", part))
    return replace(bundle, manifest=replace(bundle.manifest, artifacts=tuple(artifacts), task="segment", labels=()))


def test_each_part_of_a_model_is_a_model(tmp_path: Path) -> None:
    names = write_repository(with_parts(make_bundle(tmp_path / "sam")), tmp_path / "models")
    assert names == ["sam_image_encoder_b1", "sam_decoder_b1"]
    assert not (tmp_path / "models" / names[0] / "labels.txt").exists()
    assert [read_config(tmp_path / "models" / name).name for name in names] == names


def test_labels_of_a_detector_lie_beside_it_and_name_no_output(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b", task="detect")
    write_repository(bundle, tmp_path / "models")
    assert (tmp_path / "models" / "b_b1" / "labels.txt").exists()
    assert read_config(tmp_path / "models" / "b_b1").output[0].label_filename == ""


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    write_repository(bundle, tmp_path / "models")
    with pytest.raises(UsageError, match=r"already holds b_b1; the bundle .* is complete"):
        write_repository(bundle, tmp_path / "models")


def test_a_model_that_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton would serve a graph without its configuration under a configuration of its own."""
    bundle = make_bundle(tmp_path / "b")

    def full(*arguments: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("vtk.triton_repository.config_text", full)
        with pytest.raises(OSError, match="No space left"):
            write_repository(bundle, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []
    (tmp_path / "models" / ".b_b1.partial" / "1").mkdir(parents=True)  # of a process that was killed
    assert write_repository(bundle, tmp_path / "models") == ["b_b1"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["b_b1"]
    assert read_config(tmp_path / "models" / "b_b1").name == "b_b1"


def test_a_repository_in_a_bundle_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    (bundle.root / "manifest.json").write_text("{}")
    for folder in (bundle.root / "models", bundle.root / "golden" / ".." / "models"):
        with pytest.raises(UsageError, match="lies in a bundle"):
            check_repository(folder, None)
    with pytest.raises(UsageError, match="is a bundle"):
        check_repository(tmp_path / "to_come", tmp_path / "to_come")
    check_repository(tmp_path / "b-models", bundle.root)


def test_a_repository_that_holds_models_takes_more(tmp_path: Path) -> None:
    write_repository(make_bundle(tmp_path / "b"), tmp_path / "models")
    write_repository(make_bundle(tmp_path / "c"), tmp_path / "models")
    assert {path.name.partition("_")[0] for path in (tmp_path / "models").iterdir()} == {"b", "c"}


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    (bundle.root / "manifest.json").write_text("{}")
    before = sorted(bundle.root.rglob("*"))
    with pytest.raises(UsageError, match="is a bundle, not a model repository"):
        write_repository(bundle, bundle.root)
    assert sorted(bundle.root.rglob("*")) == before
    foreign = tmp_path / "holiday"
    foreign.mkdir()
    (foreign / "beach.jpg").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"no Triton model \(beach\.jpg\)"):
        write_repository(bundle, foreign)
    assert [path.name for path in foreign.iterdir()] == ["beach.jpg"]
    with pytest.raises(UsageError, match="is a file"):
        write_repository(bundle, foreign / "beach.jpg")
