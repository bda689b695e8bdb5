"""What a model family says about itself. Adding one is a file in `families/` and a line in `registry.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vtk.exporters.checkpoint import Checkpoint

Task = Literal["detect", "embed", "classify", "segment"]
OutputKind = Literal["logits", "boxes_cxcywh", "yolo", "embedding", "tokens", "features", "masks", "boxes_xyxy"]


@dataclass(frozen=True)
class Choice:
    """Something the tensors cannot tell. `flag` decides it; `value` is what holds now.

    `assumed` is True when nobody decided and the default was taken: such a choice is printed loudly.
    """

    name: str
    value: str
    flag: str
    alternatives: tuple[str, ...]
    reason: str
    assumed: bool


@dataclass(frozen=True)
class OutputSpec:
    """One output of the export wrapper and how far it may be from the reference.

    kind tells verify how to compare: `logits` + `boxes_cxcywh` are matched as queries (never by raw order), the rest
    element-wise. `atol` is the absolute limit for fp32 on another backend. Kind `yolo` mixes two units in one tensor
    (4 + C, A): `atol` holds for its four box rows, in pixels, and `score_atol` for the class scores below them.
    """

    name: str
    kind: OutputKind
    atol: float
    score_atol: float | None = None


@dataclass(frozen=True)
class TensorShape:
    """One input of a part. shape: with a batch of 1 first. dtype: a NumPy name."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class PartSpec:
    """One graph of a model that is made of several. batched: made for every batch size, not for 1 alone.

    Parts are chained by name: an output of one is the input of the same name of a later one; what no part makes comes
    from the picture and the prompt.
    """

    name: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[OutputSpec, ...]
    batched: bool = False


@dataclass(frozen=True)
class FamilyOptions:
    """What a user may decide that a checkpoint does not say. None means: infer, or take the stated default.

    head: path of a linear classifier's file, which `join_head` puts beside the checkpoint's tensors.
    """

    family: str | None = None
    size_hw: tuple[int, int] | None = None
    timm_name: str | None = None
    pretrain_data: Literal["lvd", "sat"] | None = None
    num_queries: int | None = None
    class_names: tuple[str, ...] | None = None
    feature_blocks: tuple[int, ...] | None = None
    head: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """Everything inferred about one checkpoint: enough to build the module, the graph and the bundle again.

    parts: the graphs of a model that is made of several, in the order in which they run; `outputs` are the last one's.
    """

    family: str
    variant: str
    layout: str
    task: Task
    config: Mapping[str, Any]
    input_hw: tuple[int, int]
    recipe: Recipe
    post: PostRecipe
    outputs: tuple[OutputSpec, ...]
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    choices: tuple[Choice, ...] = ()
    fp32_islands: tuple[str, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[PartSpec, ...] = ()


class Family(ABC):
    """Recognizes its checkpoints from tensor names and shapes alone and turns them into a module ready to export.

    Instances hold no state. `name` is what `--family` takes; `aliases` are other accepted values of `--family` (deim
    and dfine are two readings of one file). `ignorable` are full-match patterns, over the module's own names, of
    buffers that a checkpoint may lack; `unused` are full-match patterns, over remapped checkpoint names, of tensors
    with no effect at inference. `exact` says that `unused` is complete: any other tensor without a place is refused
    however small it is, since it may be a norm or a head that changes results. `reads` names the fields of
    FamilyOptions that count here, beyond `family` and `size_hw`; setting any other is an error, never ignored.
    `builds_on_meta` says that `build` computes nothing: it runs without memory, and the module takes the checkpoint's
    tensors themselves, where those are float32, instead of a copy.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    layouts: ClassVar[tuple[str, ...]]
    ignorable: ClassVar[tuple[str, ...]] = ()
    unused: ClassVar[tuple[str, ...]] = ()
    exact: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    builds_on_meta: ClassVar[bool] = False

    @abstractmethod
    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        """The layout (one of `layouts`) if these tensors are of this family, else None; from names and shapes only.

        `options` is for families that a user must ask for by name; the others ignore it.
        """

    @abstractmethod
    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        """All config numbers from shapes and small buffers.

        Raises AmbiguousError or UsageError where an option is needed or cannot hold (say, a size that is no multiple of
        the patch), CheckpointError where the tensors contradict each other.
        """

    @abstractmethod
    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, torch.Tensor]:
        """Checkpoint tensors under the names and shapes of `build(spec)`; those with no place keep their own name."""

    @abstractmethod
    def build(self, spec: ModelSpec) -> nn.Module:
        """The inner module with `spec.config`, random weights, eval mode."""

    @abstractmethod
    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        """Export wrapper in eval mode: forward(images (N, 3, *input_hw) float32) -> tuple of `spec.outputs`, in order.

        Constants for `input_hw` are baked as buffers (RoPE, position embeddings, anchors); no data-dependent branch.
        With `spec.parts`: an nn.ModuleDict that holds such a wrapper for each, forward(*its inputs) -> its outputs.
        """
