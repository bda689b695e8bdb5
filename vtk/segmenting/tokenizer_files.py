"""The tokenizer that an export puts into the bundle: that of the checkpoint's folder, or CLIP's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vtk.assets import clip_merges
from vtk.errors import CheckpointError
from vtk.segmenting.tokenizer import (
    MERGES_FILE,
    VOCABULARY_FILE,
    Pair,
    build_vocabulary,
    parse_merges,
    tokenizer_problem,
)

FOLDER = "tokenizer"
TOKENIZER_FILE = "tokenizer.json"


def write_tokenizer(bundle: Path, source: Path | None = None) -> tuple[str, ...]:
    """Write `tokenizer/vocab.json` and `tokenizer/merges.txt`; their paths inside the bundle.

    source: the checkpoint's folder, whose `vocab.json` and `merges.txt`, or else `tokenizer.json`, are taken; where it
    has none of them, or for None, the byte pairs that CLIP was published with. Raises CheckpointError for files that
    are no tokenizer of CLIP.
    """
    vocabulary, merges = _packaged() if source is None else _of_folder(source)
    folder = bundle / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VOCABULARY_FILE).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / MERGES_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{FOLDER}/{VOCABULARY_FILE}", f"{FOLDER}/{MERGES_FILE}"


def _packaged() -> tuple[Mapping[str, int], Sequence[Pair]]:
    merges = parse_merges(clip_merges())
    return build_vocabulary(merges), merges


def _of_folder(folder: Path) -> tuple[Mapping[str, int], Sequence[Pair]]:
    try:
        if (folder / VOCABULARY_FILE).is_file() and (folder / MERGES_FILE).is_file():
            vocabulary, merges = _of_two_files(folder)
        elif (folder / TOKENIZER_FILE).is_file():
            vocabulary, merges = _of_json(json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8")))
        else:
            return _packaged()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The tokenizer files in {folder} cannot be read: {error!r}.") from error
    if problem := tokenizer_problem(vocabulary, merges):
        raise CheckpointError(f"The tokenizer files in {folder} are not CLIP's: {problem}.")
    return vocabulary, merges


def _of_two_files(folder: Path) -> tuple[Mapping[str, int], Sequence[Pair]]:
    vocabulary = _checked_ids(json.loads((folder / VOCABULARY_FILE).read_text(encoding="utf-8")))
    return vocabulary, parse_merges((folder / MERGES_FILE).read_text(encoding="utf-8"))


def _of_json(data: Any) -> tuple[Mapping[str, int], Sequence[Pair]]:
    """From the file that the library tokenizers writes; older versions write a pair as one text."""
    model = data["model"]
    if model["type"] != "BPE" or model["end_of_word_suffix"] != "</w>":
        raise ValueError(f"{TOKENIZER_FILE} holds {model['type']} and not byte pairs that mark the end of a word")
    lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    added = {item["content"]: item["id"] for item in data["added_tokens"]}
    return _checked_ids({**model["vocab"], **added}), parse_merges("\n".join(lines))


def _checked_ids(vocabulary: Any) -> dict[str, int]:
    if bad := [token for token, index in vocabulary.items() if type(index) is not int]:
        raise ValueError(f"the id of {bad[0]!r} is no whole number")
    return dict(vocabulary)
