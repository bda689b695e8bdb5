"""Whether the graphs of a promptable model belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from vtk.engines.base import Engine, TensorSpec
from vtk.errors import BackendError
from vtk.predictor import Predictor

TEXT_INPUTS = {"input_ids", "attention_mask"}
PROMPT_INPUTS = {"attention_mask", "boxes", "box_labels"}
POINT_INPUTS = {"points", "point_labels"}


def check_parts(images: Predictor, text_engine: Engine, decoder_engine: Engine, point_engine: Engine | None) -> None:
    """Raise BackendError unless what one part gives is what the next takes."""
    features = images.engines[images.batch_sizes[0]].outputs
    given = {spec.name: replace(spec, shape=(1, *spec.shape[1:])) for spec in features}
    given |= {spec.name: spec for spec in text_engine.outputs}
    if (names := {spec.name for spec in text_engine.inputs}) != TEXT_INPUTS:
        raise _misfit([f"the text encoder takes {', '.join(sorted(names))}"])
    problems = _problems("decoder", decoder_engine, given, PROMPT_INPUTS)
    taken = {spec.name for spec in decoder_engine.inputs}
    if point_engine is not None:
        problems += _problems("point decoder", point_engine, given, POINT_INPUTS)
        taken |= {spec.name for spec in point_engine.inputs}
    problems += [f"nothing takes {name}" for name in given if name not in taken]
    if problems:
        raise _misfit(problems)


def _problems(part: str, engine: Engine, given: Mapping[str, TensorSpec], prompt_inputs: Set[str]) -> list[str]:
    taken = {spec.name: spec for spec in engine.inputs}
    problems = [f"the {part} lacks {name}" for name in sorted(prompt_inputs - taken.keys())]
    return problems + [
        f"the {part} takes {spec}, and gets {given.get(name)}"
        for name, spec in taken.items()
        if name not in prompt_inputs and given.get(name) != spec
    ]


def _misfit(problems: Sequence[str]) -> BackendError:
    return BackendError(
        f"The parts of the bundle do not fit each other: {'; '.join(problems)}.",
        hint="The graphs do not belong together: export again.",
    )
