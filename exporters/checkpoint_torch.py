"""Files written by `torch.save`, read by torch's own reader of tensors alone (`weights_only=True`)."""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from vtk.errors import CheckpointError, UnsafeCheckpointError
from vtk.exporters.checkpoint_nesting import unreadable

MAX_PICKLE_BYTES = 64 << 20
_SAVE_AGAIN = "Where it was trained, save the tensors alone: torch.save({'model': model.state_dict()}, path)."


def check_torch_zip(path: Path) -> str:
    """The name of the archive's pickle; refuses archives that torch.save does not write."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        raise CheckpointError(f"{path.name} is truncated or damaged: its archive directory cannot be read.") from error
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise UnsafeCheckpointError(f"{path.name} is a TorchScript archive: a program, not weights.", hint=_SAVE_AGAIN)
    pickles = [entry for entry in entries if entry.filename.count("/") == 1 and entry.filename.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError(f"{path.name} is a zip archive, but not one that torch.save wrote.")
    size = pickles[0].file_size
    if size > MAX_PICKLE_BYTES:
        raise CheckpointError(f"{path.name}: its pickle has {size} bytes; vtk reads up to {MAX_PICKLE_BYTES}.")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise CheckpointError(f"{path.name} is damaged: its archive claims more bytes than the file has.")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(f"{path.name}: its archive is compressed, which torch.save never does.")
    return pickles[0].filename


def read_entry(archive: zipfile.ZipFile, name: str, source: str) -> bytes:
    """One entry of an archive, check sum compared."""
    try:
        return archive.read(name)
    except (KeyError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(f"{source} is truncated or damaged: its entry {name} cannot be read.") from error


def load_torch_zip(path: Path, pickle_name: str) -> Mapping[object, object]:
    """The stored dictionary; its tensors are read from disk when used."""
    with zipfile.ZipFile(path) as archive:
        _check_nesting(io.BytesIO(read_entry(archive, pickle_name, path.name)), path.name, num_pickles=1)
    return _load(path, mmap=True)


def load_torch_legacy(path: Path) -> Mapping[object, object]:
    """The stored dictionary of a file as torch wrote it before version 1.6: five pickles, then the numbers."""
    with path.open("rb") as stream:
        head = io.BytesIO(stream.read(MAX_PICKLE_BYTES))
    _check_nesting(head, path.name, num_pickles=5)
    return _load(path, mmap=False)


def _check_nesting(stream: BinaryIO, name: str, num_pickles: int) -> None:
    if (reason := unreadable(stream, num_pickles)) is not None:
        raise UnsafeCheckpointError(f"{name} is built to crash or stall its reader: {reason}.", hint=_SAVE_AGAIN)


def _load(path: Path, *, mmap: bool) -> Mapping[object, object]:
    # Trainers keep their command line beside the weights. A Namespace is safe to make: it only holds attributes, takes
    # no positional argument, and has no hook that a pickle could call.
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([Namespace]):
            warnings.simplefilter("ignore")
            value = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise _refusal(path.name, str(error)) from None
    except Exception as error:
        # A damaged file makes torch raise anything from EOFError to KeyError; all mean the same to a user.
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0][:160].rstrip(".")
        raise CheckpointError(f"{path.name} is truncated or damaged: {reason}.") from error
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{path.name} holds a {type(value).__name__}, not a dictionary of tensors.")
    return value


def trainer_args(tree: Mapping[object, object]) -> dict[str, Any]:
    """`{"args": …}`, the plain values of the command line that a file's trainer kept in it, or nothing."""
    args = tree.get("args")
    if not isinstance(args, Namespace):
        return {}
    return {"args": {key: value for key, value in vars(args).items() if isinstance(key, str) and _is_plain(value)}}


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (str, int, float)) for item in value)
    return value is None or isinstance(value, (str, int, float))


def _refusal(name: str, text: str) -> CheckpointError:
    # torch's own text advises to switch the check off; only the facts are passed on.
    found = re.search(r"GLOBAL ([\w.<>]+)", text)
    if found or re.search(r"Can only (create|build)|Trying to call reduce|must be imported", text):
        what = found[1].rstrip(".") if found else "code"
        return UnsafeCheckpointError(f"{name} holds more than tensors: reading it would run {what}.", hint=_SAVE_AGAIN)
    return CheckpointError(f"{name} is not a whole file written by torch.save.")
