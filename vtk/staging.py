"""A bundle folder comes into being whole: made beside its destination, and renamed when everything is in place."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vtk.bundle import is_bundle, sync_folder
from vtk.errors import UsageError


def check_destination(output: Path, *, force: bool) -> None:
    """Refuse, before any work, a destination that is not a free name, an empty folder, or with `force` a bundle."""
    if not _is_utf8(os.fsencode(output.resolve())):
        raise UsageError(f"ONNX takes no path that is not UTF-8: {os.fsencode(output)!r}.", hint="Choose another -o.")
    try:
        if output.resolve().is_mount():
            raise UsageError(
                f"{output} is a mount point, which no folder can take the place of.", hint=f"Choose {output / 'NAME'}."
            )
        if not output.exists() or (output.is_dir() and not any(output.iterdir())):
            return
    except OSError as error:
        raise _cannot_write(output, error) from error
    if not is_bundle(output):
        raise UsageError(f"{output} exists and is not a bundle; it is left as it is.", hint="Choose another -o.")
    if not force:
        raise UsageError(f"{output} is already a bundle.", hint="Pass --force to replace it, or choose another -o.")


@contextmanager
def staged_bundle(output: Path, *, force: bool = False) -> Iterator[Path]:
    """A fresh folder beside `output` that takes its place when the block ends well and vanishes when it does not.

    An old bundle stays whole until then, so that its manifest never describes new files; what killed processes have
    left is removed. A link is followed. Raises UsageError as `check_destination` does, also at the end for what came
    in the meantime, and where the file system refuses (no right, no room).
    """
    check_destination(output, force=force)
    try:
        target = output.resolve()
        _remove_abandoned(target)
        staging = target.with_name(f".{target.name}.partial-{os.getpid()}")
        with _made(staging):
            yield staging
            check_destination(output, force=force)
            _replace_folder(staging, target)
    except OSError as error:
        raise _cannot_write(output, error) from error


@contextmanager
def _made(staging: Path) -> Iterator[None]:
    """Make the folder, hold its lock, and remove it. The kernel frees the lock of a process that is killed."""
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks; there nothing is ever taken for abandoned
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(target: Path) -> None:
    """Remove staging folders of `target` whose process is gone."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)


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


def _is_utf8(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cannot_write(output: Path, error: OSError) -> UsageError:
    return UsageError(f"{output} cannot be written: {error}.", hint="Choose another -o, or make room.")
