"""Arguments that several verbs share: what a user may decide about a model that its checkpoint does not say."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any
from unicodedata import category

from vtk.errors import UsageError
from vtk.exporters.family import FamilyOptions

MAX_LABEL_BYTES = 16 << 20
# Controls, halves of characters and line breaks: result files hold a name per line, and files hold UTF-8.
_UNFIT = ("Cc", "Cs", "Zl", "Zp")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything in FamilyOptions, and `--weights`; read back by `model_options`."""
    group = parser.add_argument_group("model", "Only needed where the tensors cannot tell; `vtk inspect` says when.")
    group.add_argument("--family", metavar="NAME", help="read the checkpoint as this family, for example deim or dfine")
    group.add_argument("--weights", metavar="PART", help="which weights of the file: model, ema, … (default: EMA)")
    group.add_argument("--size", metavar="H,W", help="input height and width in pixels; one number means a square")
    group.add_argument("--timm-name", metavar="NAME", help="timm model that these weights belong to")
    group.add_argument("--num-queries", metavar="N", type=_positive, help="object queries of a DETR-like model")
    group.add_argument(
        "--feature-blocks", metavar="N,…", type=_numbers, help="transformer blocks, from 0, that feed a detector"
    )
    group.add_argument("--pretrain-data", choices=("lvd", "sat"), help="DINOv3 pictures: web (lvd) or satellite (sat)")
    group.add_argument("--head", metavar="FILE", help="linear classifier trained on this DINOv3, in a file of its own")
    group.add_argument(
        "--labels", metavar="FILE", type=Path, help="class names: one per line, or a JSON list or {index: name}"
    )


def model_options(args: argparse.Namespace) -> FamilyOptions:
    """The frozen options of one command; raises UsageError for values that cannot be used."""
    return FamilyOptions(
        family=args.family,
        size_hw=None if args.size is None else parse_size(args.size),
        timm_name=args.timm_name,
        pretrain_data=args.pretrain_data,
        num_queries=args.num_queries,
        feature_blocks=args.feature_blocks,
        head=args.head,
        class_names=None if args.labels is None else read_labels(args.labels),
    )


def parse_size(text: str) -> tuple[int, int]:
    """`H,W` (or `HxW`, or one number for a square) as (height, width)."""
    numbers = re.fullmatch(r"\s*([1-9]\d{0,4})(?:\s*[,xX]\s*([1-9]\d{0,4}))?\s*", text)
    if numbers is None:
        raise UsageError(f"--size is HEIGHT,WIDTH in pixels, for example 480,640; got '{text}'.")
    height = int(numbers[1])
    return height, int(numbers[2] or height)


def read_labels(path: Path) -> tuple[str, ...]:
    """Class names by index, from lines of text, a JSON list, or a JSON object from index to name."""
    try:
        if path.stat().st_size > MAX_LABEL_BYTES:
            raise UsageError(f"The labels file {path} is larger than {MAX_LABEL_BYTES} bytes.")
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"The labels file {path} cannot be read: {reason}.") from error
    names = _json_names(text, path) if text.startswith(("[", "{")) else [line.strip() for line in text.splitlines()]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise UsageError(f"The labels file {path} must give every class a name; found {len(names)} entries.")
    if odd := next((name for name in names if any(category(char) in _UNFIT for char in name)), None):
        raise UsageError(f"The labels file {path} has control characters or half a character in the name {odd!r}.")
    return tuple(names)


def _json_names(text: str, path: Path) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The labels file {path} is not valid JSON: {error}.") from error
    if isinstance(value, list):
        return value
    if set(value) != {str(index) for index in range(len(value))}:
        raise UsageError(f"The labels file {path} must have the keys 0 to {len(value) - 1}, each once.")
    return [value[str(index)] for index in range(len(value))]


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got '{text}'")
    return int(text[:9])


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,4}(,\d{1,4})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas between them, got '{text}'")
    return tuple(int(number) for number in text.split(","))
