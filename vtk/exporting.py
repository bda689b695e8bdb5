"""From a checkpoint to a verified bundle: read, recognize, load, export, golden data, verify, manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

from vtk.assets import sample_pictures
from vtk.bundle import (
    Artifact,
    Bundle,
    Label,
    Manifest,
    file_sha256,
    write_json_atomic,
    write_manifest,
)
from vtk.engine_adding import add_engines
from vtk.engine_builds import EngineBuild
from vtk.engine_choice import EngineRequest, check_request, deform_form
from vtk.errors import InputError, UsageError, VerifyError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.checkpoint_head import join_head
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.graph_forms import AttentionForm, DeformForm, GraphForms
from vtk.exporters.load import LoadedModel, load_model
from vtk.exporters.precision import PrecisionPlan
from vtk.exporters.precision_files import CastGraph
from vtk.exporters.precision_terms import Precision
from vtk.exporters.to_onnx import GraphFile, check_opset, export_graphs
from vtk.exporting_parts import MAX_PICTURES as MAX_PARTS_PICTURES
from vtk.exporting_parts import complete_parts
from vtk.exporting_precision import PreciseGraphs, default_opset, put_precision
from vtk.exporting_quantized import Calibration, check_calibration, check_one_graph, put_quantized
from vtk.golden import Golden, write_golden
from vtk.inputs import expand
from vtk.reference import make_golden, options_to_json
from vtk.staging import check_destination, staged_bundle
from vtk.verification import VERIFY_NAME, make_report, verify_in_parts
from vtk.verify_limits import precision_of
from vtk.verify_report import Report
from vtk.verify_rounding import open_verified
from vtk.verify_stages import verify_golden

DEFAULT_BATCHES = (1, 8)
PARTS_BATCHES = (1,)  # one picture of a promptable model is a batch's work
MAX_GOLDEN_PICTURES = 4
_BUILDERS = ("torch", "onnx", "onnxscript")
# What to try where a precision does not hold.
_GENTLER = {
    "fp16": " Try --precision mixed, which keeps the decoder and the residual stream in float32, or fp32.",
    "bf16": " Try --precision fp16 or mixed, which round eight times finer, or fp32.",
    "mixed": " Use --precision fp32.",
}


class ExportListener:
    """Told how an export goes; override what is of interest."""

    def stage(self, title: str) -> None:
        """A stage begins."""

    def detail(self, text: str) -> None:
        """A step inside the stage."""

    def loaded(self, model: LoadedModel) -> None:
        """The checkpoint is recognized and fills the model."""

    def exported(self, graphs: Sequence[GraphFile]) -> None:
        """The graphs are written and linted."""

    def planned(self, graph: GraphFile, plan: PrecisionPlan) -> None:
        """What will stay in float32, before a graph is cast."""

    def cast(self, graph: CastGraph) -> None:
        """How much of a graph is in half precision, as built."""

    def quantized(self, measured: str) -> None:
        """What 8 bits cost on the calibration pictures, before it is judged."""

    def verified(self, report: Report) -> None:
        """The verification has ended, well or not."""

    def engines(self, built: EngineBuild) -> None:
        """The engines are built, or what is needed for it is written down."""


@dataclass(frozen=True)
class ExportSettings:
    """images: a folder of which up to four pictures become golden data, kept in the bundle (None: sample pictures).

    batches: None for DEFAULT_BATCHES, or PARTS_BATCHES for a model in parts. opset: None for the one that the precision
    needs. precision: of the graphs, and so of every engine that is built from them. calibration: for int8 and fp8.
    engines: build TensorRT engines too. attn, deform: see GraphForms; None for deform means the gather form where the
    engines need it.
    """

    batches: tuple[int, ...] | None = None
    opset: int | None = None
    precision: Precision = "fp32"
    calibration: Calibration | None = None
    weights: str | None = None
    images: Path | None = None
    backend: str = "auto"
    force: bool = False
    engines: EngineRequest | None = None
    attn: AttentionForm = "explicit"
    deform: DeformForm | None = None


def export_bundle(
    checkpoint: Path,
    output: Path | None,
    options: FamilyOptions,
    settings: ExportSettings,
    listener: ExportListener,
) -> Bundle:
    """Export and verify; `output` takes its final name only when the artifact has reproduced the source model.

    output: None means a folder in the current one, named after the checkpoint and the variant. Raises UsageError for a
    destination or a setting that cannot be used, the errors of `read_checkpoint`, `load_model` and `export_graphs`,
    ImageError for a golden picture, and VerifyError naming the first stage that differs.
    """
    if output is not None:
        check_destination(output, force=settings.force)
    if settings.engines is not None:
        check_request(settings.engines)
    if settings.opset is not None:
        check_opset(settings.opset)
    check_calibration(settings.precision, settings.calibration, opset=settings.opset)
    pictures = golden_pictures(settings.images)
    listener.stage(f"read {checkpoint.name}")
    loaded = load_model(join_head(read_checkpoint(checkpoint, weights=settings.weights), options.head), options)
    pictures = pictures[: MAX_PARTS_PICTURES if loaded.spec.parts else MAX_GOLDEN_PICTURES]
    check_one_graph(settings.precision, loaded.spec)
    labels = labels_of(loaded.spec)
    listener.loaded(loaded)
    destination = output if output is not None else Path(default_name(checkpoint, loaded.spec))
    with staged_bundle(destination, force=settings.force) as staging:
        batches = settings.batches or (PARTS_BATCHES if loaded.spec.parts else DEFAULT_BATCHES)
        forms = GraphForms(settings.attn, settings.deform or deform_form(settings.engines, loaded.spec.family))
        sampling = ", deformable sampling written out" if forms.deform == "gather" else ""
        listener.stage(f"export at batch {', '.join(map(str, sorted(set(batches))))}{sampling}")
        opset = settings.opset or default_opset(settings.precision)
        graphs = export_graphs(loaded, batches, staging, opset=opset, forms=forms, progress=listener.detail)
        listener.exported(graphs)
        precise = _put_precision(graphs, settings, loaded.spec, listener)
        shown = ", ".join(picture.name for picture in pictures)
        listener.stage(f"run the source model on pictures, which the bundle keeps: {shown}")
        golden = None if loaded.spec.parts else make_golden(loaded, pictures, listener.detail)
        if golden is None:
            kept = complete_parts(staging, loaded, pictures, listener.detail)
        else:
            kept = write_golden(staging, golden)
        files = {**kept, **_files_beside(precise)}
        draft = Bundle(staging, _manifest(loaded, options, labels, precise, forms, files))
        del loaded  # engines bring weights of their own, and those of a large model do not fit twice
        listener.stage("verify")
        report = _verify(draft, golden, settings.backend, listener)
        manifest = replace(draft.manifest, verify=report.summary())
        built = None
        if settings.engines is not None:
            manifest, built = add_engines(Bundle(staging, manifest), settings.engines, listener)
        write_manifest(staging, manifest)
    if built is not None and built.missing is not None:
        raise built.missing
    return Bundle(destination, manifest)


def _put_precision(
    graphs: Sequence[GraphFile], settings: ExportSettings, spec: ModelSpec, listener: ExportListener
) -> PreciseGraphs:
    if settings.calibration is not None:
        return put_quantized(graphs, settings.precision, spec, settings.calibration, listener)
    return put_precision(graphs, settings.precision, spec.fp32_islands, listener)


def golden_pictures(images: Path | None) -> tuple[Path, ...]:
    """A few files spread evenly over a folder, or the sample pictures. Raises InputError where there are none."""
    if images is None:
        return sample_pictures()
    if not images.is_dir():
        raise InputError(f"--images {images} is not a folder.")
    paths = [Path(item.path) for item in expand([str(images)]).items]
    count = min(MAX_GOLDEN_PICTURES, len(paths))
    return tuple(paths[index * len(paths) // count] for index in range(count))


def labels_of(spec: ModelSpec) -> tuple[Label, ...]:
    """One label per class; classes without a name are `class_0`, `class_1`, … Raises UsageError for a wrong count."""
    count = spec.num_classes or 0
    names = spec.class_names or tuple(f"class_{index}" for index in range(count))
    if len(names) != count:
        raise UsageError(f"The model has {count} classes and the labels name {len(names)}.", hint="Check --labels.")
    ids: Sequence[int] = spec.extras.get("category_ids", range(count))
    return tuple(Label(int(category), name) for category, name in zip(ids, names, strict=True))


def default_name(checkpoint: Path, spec: ModelSpec) -> str:
    """`<stem>-<variant>`, in letters that every file system takes."""
    variant = re.sub(r"[^A-Za-z0-9]+", "-", f"{spec.family}-{spec.variant}").strip("-").lower()
    return f"{checkpoint.stem}-{variant}"


def _files_beside(precise: PreciseGraphs) -> dict[str, str]:
    """Weights, and what only verify reads."""
    weights = {graph.weights for graph in precise.graphs if graph.weights is not None}
    return {path.name: file_sha256(path) for path in (*sorted(weights), *precise.twins)}


def _manifest(
    loaded: LoadedModel,
    options: FamilyOptions,
    labels: tuple[Label, ...],
    precise: PreciseGraphs,
    forms: GraphForms,
    files: Mapping[str, str],
) -> Manifest:
    """Everything but the verification, which is still to come."""
    spec = loaded.spec
    return Manifest(
        family=spec.family,
        variant=spec.variant,
        layout=spec.layout,
        task=spec.task,
        config={**spec.config, "parts": [asdict(part) for part in spec.parts]} if spec.parts else spec.config,
        source=_source(loaded, options),
        recipe=spec.recipe,
        post=spec.post,
        labels=labels,
        outputs=tuple(asdict(output) for output in spec.outputs),
        choices=tuple(asdict(choice) for choice in spec.choices),
        lint=tuple(dict.fromkeys(str(finding) for graph in precise.graphs for finding in graph.lint.warnings)),
        artifacts=tuple(_artifact(graph, forms, precise) for graph in precise.graphs),
        files=files,
        verify={},
        vtk_version=version("vtk-deploy"),
        grid_hw=spec.config.get("grid_hw"),
    )


def _source(loaded: LoadedModel, options: FamilyOptions) -> dict[str, object]:
    checkpoint = loaded.checkpoint
    return {
        "name": checkpoint.path.name,
        "format": checkpoint.format,
        "sha256": checkpoint.file_sha256,
        "tensor_digest": checkpoint.tensor_digest,
        "weights": checkpoint.weights,
        "parameters": checkpoint.num_parameters,
        "matched": loaded.report.fraction,
        "unexpected": list(loaded.report.unexpected),
        "options": options_to_json(options),
    }


def _artifact(graph: GraphFile, forms: GraphForms, precise: PreciseGraphs) -> Artifact:
    made = {"opset": str(graph.opset), "attn": forms.attn, "deform": forms.deform}
    builder = {package: version(package) for package in _BUILDERS} | made | dict(precise.facts.get(graph.path.name, {}))
    return Artifact(
        backend="onnx",
        precision=precise.precision,
        batch=graph.batch,
        file=graph.path.name,
        sha256=graph.sha256,
        builder=builder,
        target="any",
        part=graph.part,
    )


def _verify(draft: Bundle, golden: Golden | None, backend: str, listener: ExportListener) -> Report:
    """golden: None for a model in parts, which has its own."""
    progress: Callable[[str], None] = listener.detail
    if golden is None:
        report = verify_in_parts(draft, (), progress, backend=backend)
    else:
        with open_verified(draft, backend=backend) as predictor:
            report = make_report(list(verify_golden(draft, predictor, golden, progress)), predictor, golden)
    listener.verified(report)
    if report.first_failure is not None:
        raise VerifyError(
            f"The export does not reproduce {draft.manifest.source['name']}. First stage that differs: "
            f"{report.first_failure}.",
            hint="Nothing was written." + _GENTLER.get(precision_of(draft.manifest), ""),
        )
    write_json_atomic(draft.path(VERIFY_NAME), report.to_json())
    return report
