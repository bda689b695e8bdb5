"""SentencePiece's BPE from its pieces and scores, as a `tokenizers` model.

SentencePiece joins, again and again, the two neighbors that make the piece of the best score (Kudo & Richardson 2018,
arXiv:1808.06226). Merges ranked by the score of what they make do the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers import decoders, models, normalizers

from vtk.errors import CheckpointError
from vtk.llm_serving.loading.metadata import Metadata
from vtk.llm_serving.tokenizer.tokenizer import METASPACE

_NORMAL, _UNKNOWN = 1, 2


def sentencepiece_bpe(values: Metadata, tokens: list[str], types: list[int]) -> tokenizers.Tokenizer:
    """values: the `tokenizer.ggml` metadata, whose `scores` go with `tokens` and their `types`."""
    scores = values.numbers("scores")
    if len(scores) != len(tokens):
        raise CheckpointError(f"{values.source}: {len(scores)} scores for {len(tokens)} tokens.")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    pieces = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == _NORMAL}
    merges = _ranked_merges(pieces)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    adds_space = values.boolean("add_space_prefix", True)
    prepend = [normalizers.Prepend(METASPACE)] if adds_space else []
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", METASPACE)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(METASPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _ranked_merges(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, by falling score of what it makes."""
    merges = []
    for piece, _ in sorted(pieces.items(), key=lambda item: -item[1]):
        splits = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in pieces and right in pieces]
    return merges
