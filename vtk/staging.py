"""A bundle folder comes into being whole: made beside its destination, and renamed when everything is in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vtk.bundle import MANIFEST_NAME, sync_folder
from vtk.errors import UsageError


def check_destination(output: Path, *, force: bool) -> None:
    """Refuse, before any work, a destination that is not a free name, an empty folder, or with `force` a bundle."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / MANIFEST_NAME).is_file():
        raise UsageError(f"{output} exists and is not a bundle; it is left as it is.", hint="Choose another -o.")
    if not force:
        raise UsageError(f"{output} is already a bundle.", hint="Pass --force to replace it, or choose another -o.")


@contextmanager
def staged_bundle(output: Path, *, force: bool = False) -> Iterator[Path]:
    """A fresh folder beside `output` that takes its place when the block ends well and vanishes when it does not.

    An old bundle stays whole until then, so that its manifest never describes new files. Raises UsageError as
    `check_destination` does, and where the file system refuses (no right, no room).
    """
    check_destination(output, force=force)
    staging = output.with_name(f".{output.name}.partial-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        yield staging
        _replace_folder(staging, output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error}.", hint="Choose another -o, or make room.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace_folder(new: Path, output: Path) -> None:
    old = output.with_name(f".{output.name}.old-{os.getpid()}")
    if output.exists():
        output.rename(old)
    try:
        new.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync_folder(output.parent)
