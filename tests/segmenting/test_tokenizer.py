"""CLIP's tokenizer: token for token that of transformers, from every kind of file that it comes in."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CLIPTokenizer

from vtk.errors import BundleError, CheckpointError, UsageError
from vtk.segmenting.tokenizer import ClipTokenizer, build_vocabulary, parse_merges, read_tokenizer
from vtk.segmenting.tokenizer_files import write_tokenizer

# Letters that Unicode has had for long: what is newer is classified as Python's own tables say.
OLD = st.characters(exclude_categories=["Cs", "Cn"]).filter(lambda c: unicodedata.ucd_3_2_0.category(c) != "Cn")
ODD = st.sampled_from(
    [
        *("'s", "'RE", "''", "--", " ", "\t", "\n", "\xa0", "\u3000", "\x1c", "\u200b", "\ufeff", "\x00"),
        *("ß", "Σς", "İ", "½", "²", "e\u0301", "ﬁ", "中文", "👩\u200d👩\u200d👧", "🇩🇪"),
        *("<|endoftext|>", "<|startoftext|>", "<|EndOfText|>"),
    ]
)
PROMPTS = [
    "",
    " ",
    "yellow bus",
    "A  Person\n",
    "the dog's 2 toys!",
    "it'll",
    "Ünïcödé",
    "🚌🚌",
    "x" * 300,
    "日本語のバス",
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundle")
    assert write_tokenizer(root) == ("tokenizer/vocab.json", "tokenizer/merges.txt")
    return root


@pytest.fixture(scope="module")
def tokenizer(bundle: Path) -> ClipTokenizer:
    return read_tokenizer(bundle / "tokenizer", context_length=32)


@pytest.fixture(scope="module")
def reference(bundle: Path) -> Callable[[str], list[int]]:
    loaded = CLIPTokenizer.from_pretrained(bundle / "tokenizer")
    return lambda text: loaded(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", PROMPTS)
def test_it_is_the_one_of_transformers(
    tokenizer: ClipTokenizer, reference: Callable[[str], list[int]], text: str
) -> None:
    assert tokenizer.encode(text) == reference(text)


@settings(max_examples=400, deadline=None)
@given(parts=st.lists(st.one_of(ODD, st.text(OLD, max_size=8), st.text("abcdefgh'.!1 ", max_size=12)), max_size=8))
def test_it_is_the_one_of_transformers_for_anything(
    tokenizer: ClipTokenizer, reference: Callable[[str], list[int]], parts: list[str]
) -> None:
    text = "".join(parts)
    assert tokenizer.encode(text) == reference(text)


def test_a_prompt_stands_between_start_and_end_and_is_padded(tokenizer: ClipTokenizer, golden: Path) -> None:
    """The golden data was made with 'dog cat'."""
    data = np.load(golden / "sam3_small_expected.npz")
    tokens = tokenizer("Dog  CAT ")
    np.testing.assert_array_equal(tokens.input_ids, data["input_ids"])
    np.testing.assert_array_equal(tokens.attention_mask, data["attention_mask"])
    assert tokens.input_ids.dtype == tokens.attention_mask.dtype == np.int64


def test_an_empty_prompt_is_start_and_end(tokenizer: ClipTokenizer) -> None:
    tokens = tokenizer("")
    assert tokens.input_ids[0, :2].tolist() == [49406, 49407]
    assert tokens.attention_mask.sum() == 2


def test_a_prompt_that_is_too_long_is_refused(tokenizer: ClipTokenizer) -> None:
    assert tokenizer(" ".join(["bus"] * 30)).attention_mask.sum() == 32
    with pytest.raises(UsageError, match="31 tokens; this model reads 30"):
        tokenizer(" ".join(["bus"] * 31))


def test_every_file_of_a_checkpoint_gives_the_same_tokenizer(bundle: Path, tmp_path: Path) -> None:
    """The two files of old checkpoints, the one of new ones, and that of libraries which write a pair as one text."""
    made = {name: (bundle / "tokenizer" / name).read_bytes() for name in ("vocab.json", "merges.txt")}
    new = tmp_path / "new"
    CLIPTokenizer.from_pretrained(bundle / "tokenizer").save_pretrained(new)
    assert (new / "tokenizer.json").is_file()
    assert not (new / "vocab.json").exists()
    old = tmp_path / "old"
    old.mkdir()
    data = json.loads((new / "tokenizer.json").read_text())
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    (old / "tokenizer.json").write_text(json.dumps(data))
    for number, source in enumerate((bundle / "tokenizer", new, old, tmp_path / "nothing")):
        written = tmp_path / f"out{number}"
        write_tokenizer(written, source)
        assert json.loads((written / "tokenizer/vocab.json").read_text()) == json.loads(made["vocab.json"])
        assert (written / "tokenizer/merges.txt").read_bytes() == made["merges.txt"]


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"model": {"type": "WordPiece"}}',
        '{"model": {"type": "BPE", "end_of_word_suffix": "", "vocab": {}, "merges": []}}',
        '{"model": {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": {}, "merges": []}, "added_tokens": []}',
        '{"model": {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": {"a": "b"}}, "added_tokens": []}',
    ],
)
def test_files_of_another_tokenizer_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="tokenizer"):
        write_tokenizer(tmp_path / "out", tmp_path)


def test_a_damaged_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        read_tokenizer(tmp_path, context_length=32)
    (tmp_path / "merges.txt").write_bytes((bundle / "tokenizer/merges.txt").read_bytes())
    (tmp_path / "vocab.json").write_text('{"<|startoftext|>": 0, "<|endoftext|>": 1}')
    with pytest.raises(BundleError, match="lacks"):
        read_tokenizer(tmp_path, context_length=32)


def test_merges_are_pairs() -> None:
    assert parse_merges("#version: 0.2\na b\n\n") == [("a", "b")]
    with pytest.raises(ValueError):
        parse_merges("a b c")
    assert build_vocabulary([("a", "b</w>")])["ab</w>"] == 512
