"""The tokenizer of a Hugging Face folder: tokenizer.json, and the chat template beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_json import read_json
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.tokenizer.chat_template import ChatTemplate
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def hf_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Read tokenizer.json. CheckpointError where it is missing or broken."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"The folder {folder} has no tokenizer.json.",
            hint="vtk reads the fast tokenizer's file; save it with transformers' AutoTokenizer.",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file it cannot parse
        raise CheckpointError(f"tokenizer.json cannot be read: {str(error)[:200]}.") from error
    backend.no_truncation()
    backend.no_padding()
    settings_path = folder / "tokenizer_config.json"
    settings = read_json(settings_path) if settings_path.is_file() else {}
    special = {name: text for name in _SPECIAL if (text := _text(settings.get(name))) is not None}
    eos = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    source = _template_source(folder, settings)
    return Tokenizer(
        backend,
        eos_ids=config.eos_ids or ({eos} if eos is not None else set()),
        bos_id=config.bos_id,
        template=ChatTemplate(source, special) if source is not None else None,
        max_tokens=config.max_positions,
    )


def _text(token: object) -> str | None:
    """A special token is a text, or an object with its `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        return None
    if not content.isascii() and any("\ud800" <= char <= "\udfff" for char in content):
        raise CheckpointError("tokenizer_config.json: a special token holds half a surrogate pair.")
    return content


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several, the one called default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path.name} is not UTF-8 text.") from error
    source = settings.get("chat_template")
    if isinstance(source, list):
        entries = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
        source = entries[0].get("template") if entries else None
    if source is not None and not isinstance(source, str):
        raise CheckpointError(f"tokenizer_config.json: the chat template should be text, not {str(source)[:60]!r}.")
    return source
