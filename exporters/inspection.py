"""What a checkpoint is, told from its tensors alone: everything `vtk inspect` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.checkpoint_head import join_head
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.registry import identify


@dataclass(frozen=True)
class Inspection:
    """A recognized checkpoint: what it is (`spec`, `title` of its family) and what it holds (`checkpoint`)."""

    checkpoint: Checkpoint
    spec: ModelSpec
    title: str

    @property
    def dtypes(self) -> dict[str, int]:
        """Stored elements per dtype, most frequent first."""
        counts: Counter[str] = Counter()
        for tensor in self.checkpoint.tensors.values():
            counts[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
        return dict(counts.most_common())

    def to_json(self) -> dict[str, Any]:
        """The same facts as plain JSON data."""
        return {"kind": "checkpoint", **_source_json(self.checkpoint), "dtypes": self.dtypes} | _spec_json(
            self.spec, self.title
        )


def inspect_checkpoint(path: Path, options: FamilyOptions | None = None, weights: str | None = None) -> Inspection:
    """Read a checkpoint and say what it is, without building the model.

    Raises the errors of `read_checkpoint` and `identify`.
    """
    chosen = options or FamilyOptions()
    checkpoint = join_head(read_checkpoint(path, weights=weights), chosen.head)
    family, spec = identify(checkpoint, chosen)
    return Inspection(checkpoint, spec, family.title)


def _source_json(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "sha256": checkpoint.file_sha256,
        "tensor_digest": checkpoint.tensor_digest,
        "weights": checkpoint.weights,
        "available_weights": list(checkpoint.available_weights),
        "stripped": list(checkpoint.stripped),
        "ignored": list(checkpoint.ignored),
        "tensors": len(checkpoint.tensors),
        "parameters": checkpoint.num_parameters,
    }


def _spec_json(spec: ModelSpec, title: str) -> dict[str, Any]:
    return {
        "family": spec.family,
        "title": title,
        "variant": spec.variant,
        "layout": spec.layout,
        "task": spec.task,
        "config": _plain(spec.config),
        "input_hw": list(spec.input_hw),
        "recipe": _plain(spec.recipe.to_json()),
        "post": spec.post.to_json(),
        "outputs": [asdict(output) for output in spec.outputs],
        "classes": spec.num_classes,
        "class_names": None if spec.class_names is None else list(spec.class_names),
        "choices": [_plain(asdict(choice)) for choice in spec.choices],
        "fp32_islands": list(spec.fp32_islands),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
