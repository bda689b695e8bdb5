"""Say what a checkpoint or a bundle is, and what only you can decide.

Family, variant and every number of the config are read from the tensors; nothing in the file is run. What the tensors
cannot tell is listed with the flag that decides it. Exit code: 0 recognized, 2 the file cannot be used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtk.cli.options import add_model_arguments, model_options
from vtk.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from vtk.exporters.family import Choice
    from vtk.exporters.inspection import Inspection
    from vtk.inspection import BundleInspection
    from vtk.postprocess.recipe import PostRecipe
    from vtk.preprocess.recipe import Recipe

HELP = "say what a checkpoint or a bundle is"
PLAIN_WIDTH = 160
SHOWN_NAMES = 8

Row = tuple[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CHECKPOINT and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help=".safetensors, .pth, .pt, a model's folder, or a bundle"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was found."""
    from vtk.cli.terminal import console

    options = model_options(args)
    # from here on torch may be imported
    from vtk.inspection import BundleInspection, inspect_path

    found = inspect_path(args.checkpoint, options, args.weights)
    if args.json:
        console().out(json.dumps(found.to_json(), indent=2), highlight=False)
        return 0
    screen = console()
    if not screen.is_terminal:
        screen = console(width=PLAIN_WIDTH)
    if isinstance(found, BundleInspection):
        _print_table(screen, found.bundle.root.name, bundle_rows(found), found.choices)
    else:
        _print_table(screen, found.checkpoint.path.name, checkpoint_rows(found), found.spec.choices)
    return 0


def checkpoint_rows(found: Inspection) -> Iterator[Row]:
    """Label and text of each line about a checkpoint."""
    checkpoint, spec = found.checkpoint, found.spec
    yield "family", f"{spec.family} ({found.title})"
    yield "variant", spec.variant
    yield "layout", f"{spec.layout}, {checkpoint.format}"
    yield "task", spec.task
    yield "parameters", f"{checkpoint.num_parameters:,} in {len(checkpoint.tensors)} tensors, buffers included"
    yield "dtypes", ", ".join(f"{dtype} ({count:,})" for dtype, count in found.dtypes.items())
    yield "weights", _weights_text(checkpoint.weights, checkpoint.available_weights)
    if checkpoint.stripped:
        yield "stripped", "prefixes " + ", ".join(checkpoint.stripped)
    if checkpoint.ignored:
        yield "ignored", f"{len(checkpoint.ignored)} entries without tensors: {_some(checkpoint.ignored)}"
    if spec.num_classes is not None:
        yield "classes", _classes_text(spec.num_classes, spec.class_names)
    yield from _recipe_rows(spec.recipe, spec.post)
    for key, value in spec.config.items():
        yield f"  {key}", _value_text(value)
    yield "sha256", checkpoint.file_sha256
    yield "tensors", checkpoint.tensor_digest


def bundle_rows(found: BundleInspection) -> Iterator[Row]:
    """Label and text of each line about a bundle."""
    manifest = found.bundle.manifest
    yield "family", manifest.family
    yield "variant", manifest.variant
    yield "task", manifest.task
    for artifact in manifest.artifacts:
        yield (
            "artifact",
            (
                f"{artifact.file}: {artifact.backend}, {artifact.precision} as built, batch {artifact.batch}, "
                f"for {artifact.target}, sha256 {artifact.sha256[:12]}…"
            ),
        )
    if manifest.labels:
        yield "classes", _classes_text(len(manifest.labels), tuple(label.name for label in manifest.labels))
    yield from _recipe_rows(manifest.recipe, manifest.post)
    for key, value in manifest.config.items():
        yield f"  {key}", _value_text(value)
    for key, value in manifest.source.items():
        yield f"source {key}", _value_text(value)
    yield "verified", _value_text(manifest.verify)
    yield "made by", f"vtk {manifest.vtk_version}, schema {manifest.schema_version}"


def _recipe_rows(recipe: Recipe, post: PostRecipe) -> Iterator[Row]:
    height, width = recipe.size_hw
    yield "input", f"height {height}, width {width}"
    only_for = {"letterbox": ("pad_value", "scale_up"), "center_crop": ("crop_fraction",), "stretch": ()}
    keys = ("resize", "interpolation", "mean", "std", *only_for[recipe.resize])
    yield "preprocess", _pairs({key: getattr(recipe, key) for key in keys})
    thresholds = ("score_threshold", "max_detections")
    used = {
        "detr": thresholds,
        "yolo": (*thresholds, "iou_threshold"),
        "segment": thresholds,
        "classify": ("top_k",),
        "embed": (),
    }
    yield "postprocess", _pairs({key: getattr(post, key) for key in ("kind", *used[post.kind])})


def _print_table(console: Console, name: str, rows: Iterator[Row], choices: Iterable[Choice]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(name)), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(printable(label)), Text(printable(text)))
    console.print(table, highlight=False)
    for choice in choices:
        style = "bold yellow" if choice.assumed else "green"
        console.print(Text(printable(_choice_text(choice)), style=style), highlight=False, soft_wrap=True)


def _choice_text(choice: Choice) -> str:
    others = [item for item in choice.alternatives if item != choice.value]
    also = f" (also possible: {', '.join(others)})" if others else ""
    word = "ASSUMED" if choice.assumed else "decided"
    return f"{word} {choice.name} = {choice.value}: {choice.reason}; {choice.flag} decides{also}"


def _weights_text(chosen: str, available: tuple[str, ...]) -> str:
    others = ", ".join(name for name in available if name != chosen)
    average = " (moving average)" if "ema" in chosen else ""
    return f"{chosen}{average}" + (f"; the file also holds {others}: --weights takes it" if others else "")


def _classes_text(count: int, names: tuple[str, ...] | None) -> str:
    return f"{count}: {_some(names)}" if names else f"{count}, names unknown (--labels FILE gives them)"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", …" if len(names) > SHOWN_NAMES else "")


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_value_text(value)}" for key, value in values.items() if value is not None)


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value)
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, Mapping) for item in value):
            return "\n".join(_value_text(item) for item in value)
        return f"({', '.join(_value_text(item) for item in value)})"
    if value is None:
        return "none"
    return str(value) if not isinstance(value, bool) else "yes" if value else "no"
