"""Find pictures by their embeddings: those nearest to a picture, or groups that are nearly the same.

EMB.parquet is what 'vtk run' makes with an embedding bundle. A picture that is in the table is found by its content;
any other one is embedded first, with the bundle that made the table. Scores are cosines: 1 is the same direction.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vtk.cli.text import one_line
from vtk.errors import ImageError, InputError, UsageError

if TYPE_CHECKING:
    from vtk.preprocess.resize import RGBImage
    from vtk.search.duplicates import Group
    from vtk.search.nearest import Hit
    from vtk.search.table import EmbeddingTable, Vectors

HELP = "find pictures by their embeddings"
DEFAULT_THRESHOLD = 0.95


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """EMB.parquet, what to look for, and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("table", metavar="EMB.parquet", type=Path, help="table made by 'vtk run'")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--image", metavar="FILE", type=Path, action="append", help="picture to look for (may be repeated)"
    )
    what.add_argument(
        "--duplicates",
        metavar="COSINE",
        type=_cosine,
        nargs="?",
        const=DEFAULT_THRESHOLD,
        help=f"groups of pictures that are at least this alike (default: {DEFAULT_THRESHOLD})",
    )
    parser.add_argument("-k", metavar="N", type=_positive, default=10, help="pictures to list (default: 10)")
    parser.add_argument(
        "--bundle", metavar="BUNDLE", type=Path, help="what the table was made with (default: its job's)"
    )
    parser.add_argument(
        "--approximate", action="store_true", help="--duplicates: by a graph of neighbors, for millions"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per picture or group")


def run(args: argparse.Namespace) -> int:
    """Search and print; returns 0 also when nothing is found."""
    from vtk.search.duplicates import duplicates
    from vtk.search.nearest import nearest
    from vtk.search.table import open_table

    if args.image is not None and args.approximate:
        raise UsageError("--approximate is for --duplicates: a search for a picture reads the table once.")
    table = open_table(args.table)
    if args.image is None:
        groups = duplicates(table, args.duplicates, approximate=args.approximate)
        _print([_group_row(group) for group in groups], _group_text, as_json=args.json)
        return 0
    queries = _queries(table, args.image, args.bundle)
    for image, hits in zip(args.image, nearest(table, queries, args.k), strict=True):
        _print([_hit_row(image, hit) for hit in hits], _hit_text, as_json=args.json)
    return 0


def _queries(table: EmbeddingTable, images: list[Path], bundle: Path | None) -> Vectors:
    """A vector per picture: the table's own where it holds the file, else made with the bundle."""
    data = [_read(image) for image in images]
    digests = [hashlib.sha256(item).hexdigest() for item in data]
    vectors: dict[str, Any] = {}
    for block in table.blocks():
        found = ((entry.sha256, vector) for entry, vector in zip(block.entries, block.vectors, strict=True))
        vectors |= {digest: vector for digest, vector in found if digest in digests}
    missing = {digest: item for digest, item in zip(digests, data, strict=True) if digest not in vectors}
    if missing:
        shown = dict(zip(digests, images, strict=True))
        pictures = [_pixels(shown[digest], item) for digest, item in missing.items()]
        vectors |= zip(missing, _embed(table, pictures, bundle), strict=True)
    return np.stack([vectors[digest] for digest in digests])


def _read(image: Path) -> bytes:
    from vtk.preprocess.decode import read_picture

    try:
        return read_picture(image)
    except ImageError as error:
        raise InputError(f"{image}: {error.message}", hint=error.hint) from error


def _embed(table: EmbeddingTable, pictures: list[RGBImage], bundle: Path | None) -> Vectors:
    from vtk.api import load
    from vtk.bundle import read_bundle
    from vtk.postprocess.results import Embeddings
    from vtk.search.table import unit

    root = bundle or _bundle_of_job(table)
    source = read_bundle(root, check_files=False).manifest.source["tensor_digest"]
    if source != table.model:
        raise UsageError(
            f"{root} holds other weights than those that made {table.path}: {source[:12]}…, expected "
            f"{table.model[:12]}….",
            hint="Pass the bundle that made the table with --bundle.",
        )
    with load(root) as model:
        results = [model(picture) for picture in pictures]
    pooled = [result.pooled for result in results if isinstance(result, Embeddings)]
    return unit(np.stack(pooled))


def _pixels(image: Path, data: bytes) -> RGBImage:
    from vtk.preprocess.decode import DEFAULT, decode

    try:
        return decode(data, DEFAULT)
    except ImageError as error:
        raise InputError(f"{image}: {error.message}", hint=error.hint) from error


def _bundle_of_job(table: EmbeddingTable) -> Path:
    """Where the job beside the table says that its bundle was."""
    from vtk.jobs import JOB_FILE

    try:
        noted = json.loads((table.path.parent / JOB_FILE).read_bytes())["notes"]["bundle"]
        return Path(str(noted))
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            "The picture is not in the table, and no job beside it says which bundle made it.",
            hint="Pass the bundle with --bundle.",
        ) from None


def _hit_row(image: Path, hit: Hit) -> dict[str, Any]:
    return {"image": str(image), "score": round(hit.score, 6), "file_name": hit.entry.file_name, "path": hit.entry.path}


def _hit_text(row: dict[str, Any]) -> str:
    return f"{row['score']:.4f}  {one_line(row['path'])}"


def _group_row(group: Group) -> dict[str, Any]:
    return {"score": round(group.score, 6), "paths": [entry.path for entry in group.entries]}


def _group_text(row: dict[str, Any]) -> str:
    paths = (f"        {one_line(path)}" for path in row["paths"])
    return "\n".join([f"{row['score']:.4f}  {len(row['paths'])} pictures", *paths])


def _print(rows: list[dict[str, Any]], text: Callable[[dict[str, Any]], str], *, as_json: bool) -> None:
    for row in rows:
        sys.stdout.write((json.dumps(row, ensure_ascii=False) if as_json else text(row)) + "\n")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got '{text}'")
    return int(text)


def _cosine(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not -1 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a cosine from -1 to 1, got '{text}'")
    return value
