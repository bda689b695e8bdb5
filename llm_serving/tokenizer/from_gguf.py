"""A tokenizer from the metadata of a GGUF file: its vocabulary, merges or scores, and the rule that splits text."""

from __future__ import annotations

from collections.abc import Mapping

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_gguf import GgufFile
from vtk.llm_serving.loading.metadata import Metadata
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.tokenizer.chat_template import ChatTemplate
from vtk.llm_serving.tokenizer.sentencepiece_bpe import sentencepiece_bpe
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

MAX_TOKEN_CHARACTERS = 1 << 12
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# How each `tokenizer.ggml.pre` splits text before merging, as the tokenizer.json of its models says.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_RULES = ("llama-bpe", "llama3")
_SPLITS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
}


def gguf_tokenizer(file: GgufFile, config: ModelConfig) -> Tokenizer:
    """Build the file's tokenizer. CheckpointError for a kind that vtk does not know."""
    values = Metadata(file.metadata, file.path.name).under("tokenizer.ggml")
    source = Metadata(file.metadata, file.path.name).text("tokenizer.chat_template", "")
    tokens, types = values.texts("tokens"), values.integers("token_type")
    if len(types) != len(tokens):
        raise CheckpointError(f"{values.source}: {len(types)} token types for {len(tokens)} tokens.")
    if len(set(tokens)) < len(tokens):
        raise CheckpointError(f"{values.source}: a token occurs twice in the vocabulary.")
    if (longest := max(map(len, tokens), default=0)) > MAX_TOKEN_CHARACTERS:
        raise CheckpointError(f"{values.source}: a token is {longest} characters long.")
    kind = values.text("model")
    if kind == "gpt2":
        backend = _byte_level_bpe(values, tokens)
    elif kind == "llama":
        backend = sentencepiece_bpe(values, tokens, types)
    else:
        raise CheckpointError(
            f"{values.source} has a tokenizer of the kind '{kind}'.",
            hint="vtk builds gpt2 and llama (SentencePiece BPE) tokenizers; for others take the safetensors folder.",
        )
    _add_special_tokens(backend, tokens, types)
    # llama.cpp adds a BOS for SentencePiece and for Llama 3's rule unless the file says otherwise.
    has_bos = kind == "llama" or values.text("pre", "default") in _LLAMA3_RULES
    _add_template_tokens(backend, values, tokens, has_bos=values.boolean("add_bos_token", has_bos))
    return Tokenizer(
        backend,
        eos_ids=config.eos_ids,
        bos_id=config.bos_id,
        template=ChatTemplate(source, _named_tokens(values, tokens)) if source else None,
        max_tokens=config.max_positions,
    )


def _byte_level_bpe(values: Metadata, tokens: list[str]) -> tokenizers.Tokenizer:
    pre = values.text("pre", "default")
    if pre not in _SPLITS:
        raise CheckpointError(
            f"{values.source} splits text by the rule '{pre}'.", hint=f"vtk knows: {', '.join(sorted(_SPLITS))}."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # Llama 3 takes a whole word that is a token before any merge (`ignore_merges` in its tokenizer.json).
    model = models.BPE(vocabulary, _merges(values, vocabulary), ignore_merges=pre in _LLAMA3_RULES)
    backend = tokenizers.Tokenizer(model)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLITS[pre]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*digits, split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _merges(values: Metadata, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for merge in values.texts("merges"):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise CheckpointError(f"{values.source}: the merge {merge[:40]!r} does not make a token from two tokens.")
        merges.append((left, right))
    return merges


def _add_special_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are special; user-defined ones are ordinary text that is never split."""
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL)]
    plain = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])


def _add_template_tokens(backend: tokenizers.Tokenizer, values: Metadata, tokens: list[str], *, has_bos: bool) -> None:
    """What `encode` adds around a text: BOS or EOS, where the file says so."""
    has_eos = values.boolean("add_eos_token", False)
    names = _named_tokens(values, tokens)
    pattern = ["$A"]
    if has_bos and "bos_token" in names:
        pattern.insert(0, names["bos_token"])
    if has_eos and "eos_token" in names:
        pattern.append(names["eos_token"])
    if len(pattern) > 1:
        special = [(text, tokens.index(text)) for text in pattern if text != "$A"]
        backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=special)


def _named_tokens(values: Metadata, tokens: list[str]) -> dict[str, str]:
    named = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = values.integer(f"{key}_token_id", -1)
        if 0 <= index < len(tokens):
            named[f"{name}_token"] = tokens[index]
    return named
