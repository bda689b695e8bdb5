"""What of the disk a runtime is asked to serve."""

from __future__ import annotations

from pathlib import Path

from vtk.errors import InputError
from vtk.serving.model_folder import NAME_PATTERN, Ignored, Inventory, find_at, find_models, merge
from vtk.serving.settings import KIND_NAMES, KINDS, RuntimeSettings


def look(settings: RuntimeSettings) -> Inventory:
    """What is there now of what the settings ask for."""
    kept = _look(settings)
    return Inventory(tuple(model for model in kept.models if model.kind in settings.kinds), kept.ignored)


def check_selected(settings: RuntimeSettings) -> None:
    """Raise InputError for a selected name or path that holds no model, or one that would not be served."""
    served = _look(settings).models
    for item in settings.selected:
        place = _place(item, settings.model_folder)
        if place is None:
            raise InputError(
                f"There is no model '{item}': it is neither a path nor a name in {settings.model_folder}.",
                hint="Models: a bundle made by 'vtk export', a GGUF file, a Hugging Face folder.",
            )
        found = find_at(place)
        if not found.models:
            raise InputError(f"'{item}' cannot be served: {found.ignored[0].path}: {found.ignored[0].reason}.")
        model = found.models[0]
        if model not in served:
            raise InputError(f"'{item}' cannot be served: another model is called '{model.name}' too.")
        if model.kind not in settings.kinds:
            raise InputError(f"'{item}' is a {KIND_NAMES[model.kind]}.", hint=f"Leave it out, or add --{model.kind}.")


def nothing_to_serve(settings: RuntimeSettings, ignored: tuple[Ignored, ...]) -> InputError:
    """Says what was found instead, and how to fill a model folder."""
    folder = settings.model_folder
    found = "; ".join(f"{item.path.name}: {item.reason}" for item in ignored[:5])
    kinds = " or ".join(f"{KIND_NAMES[kind]}s" for kind in KINDS if kind in settings.kinds)
    return InputError(
        f"There are no {kinds} in {folder}{f' ({found})' if found else ''}.",
        hint=f"Run: vtk pull-demo, or vtk export CHECKPOINT -o {folder}/NAME; or put a GGUF file there.",
    )


def _look(settings: RuntimeSettings) -> Inventory:
    if not settings.selected:
        return find_models(settings.model_folder)
    places = [_place(item, settings.model_folder) for item in dict.fromkeys(settings.selected)]
    return merge([find_at(place) for place in places if place is not None])


def _place(item: str, folder: Path) -> Path | None:
    """A path that exists, or else the entry of that name in the model folder."""
    candidates = (Path(item).absolute(), folder / item, folder / f"{item}.gguf")
    tried = candidates if NAME_PATTERN.fullmatch(item) else candidates[:1]
    return next((place for place in tried if place.exists()), None)
