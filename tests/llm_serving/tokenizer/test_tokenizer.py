"""Tokenizers from either file: text survives the round trip, every token has its bytes, nothing is added twice."""

import inspect
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2 import Qwen2Tokenizer

from vtk.errors import CheckpointError, RequestError
from vtk.exporters.checkpoint_gguf import GgufFile
from vtk.llm_serving.loading.source import ModelSource
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.sampling.detokenizer import Detokenizer
from vtk.llm_serving.tokenizer.chat_template import ChatTemplate
from vtk.llm_serving.tokenizer.from_gguf import gguf_tokenizer
from vtk.llm_serving.tokenizer.from_hf import hf_tokenizer
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer, byte_alphabet

CONFIG = ModelConfig("llama", 8, 8, 1, 1, 1, 8, 260, 64, 1e-5, 1e4, bos_id=257, eos_ids=frozenset({258}))
TEXTS = (
    "Hello world, it's 12345 o'CLOCK!!!", "  two  spaces\n\n\n\tand tabs \r\n", "x=1;y = 22\r\nz", "été 漢字 🙂🙂 ½²",
    "don'T we'LL", "a\u00a0b\u3000c", "   \n ", "e\u0301", "9 99 999 9999 99999", " 12  3",
)  # fmt: skip
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def gguf_file(pre: str = "smollm", **values: object) -> GgufFile:
    tokens = [*sorted(byte_alphabet()), "Hi", "<s>", "</s>", "<tool>"]
    metadata = {
        "model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [1] * 257 + [3, 3, 4], "merges": ["H i"],
        "bos_token_id": 257, "eos_token_id": 258, **values,
    }  # fmt: skip
    keyed = {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}
    return GgufFile(Path("tiny.gguf"), keyed, {}, "", "")  # type: ignore[arg-type]


def test_the_byte_alphabet_is_that_of_the_library() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    (word, _), *_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str("\n é\x00~")
    assert bytes(byte_alphabet()[char] for char in word) == "\n é\x00~".encode()


def test_text_survives_the_round_trip(smollm2: ModelSource) -> None:
    """The model's vocabulary has no tokens for a few control bytes and unassigned planes; its tokenizer drops them."""
    tokenizer = smollm2.tokenizer

    @settings(max_examples=300, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=60))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
        streamed = Detokenizer(tokenizer.token_bytes)
        deltas = [streamed.push(token).text for token in ids]
        assert "".join(deltas) + streamed.finish().text == text
        assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)

    check()


@pytest.mark.parametrize(
    ("text", "ids", "deltas"),
    [
        ("🙂", [10813, 38887], ["", "🙂"]),
        ("你好", [18645, 250, 48392, 138], ["", "你", "", "好"]),
        (" 🌶", [15107, 230, 131], [" ", "", "🌶"]),
    ],
)
def test_characters_of_several_tokens(smollm2: ModelSource, text: str, ids: list[int], deltas: list[str]) -> None:
    """Case L29."""
    assert smollm2.tokenizer.encode(text) == ids
    streamed = Detokenizer(smollm2.tokenizer.token_bytes)
    assert [streamed.push(token).text for token in ids] == deltas


def test_special_tokens(smollm2: ModelSource) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_ids == {2}
    assert {0, 1, 2} <= tokenizer.special_ids
    assert tokenizer.encode("<|im_start|>hi") == [1, *tokenizer.encode("hi")]
    assert tokenizer.decode([1, *tokenizer.encode("hi"), 2]) == "hi"
    assert tokenizer.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"
    assert tokenizer.token_bytes(-1) == tokenizer.token_bytes(49152) == b""


def test_user_defined_tokens_are_text_that_is_never_split() -> None:
    tokenizer = gguf_tokenizer(gguf_file(), CONFIG)
    ids = tokenizer.encode("Hi<tool><s>")
    assert ids == [256, 259, 257]
    assert tokenizer.decode(ids) == "Hi<tool>"


@pytest.mark.parametrize(
    ("pre", "add_bos", "expected"),
    [
        ("smollm", None, [256]),
        ("llama-bpe", None, [257, 256]),
        ("llama-bpe", False, [256]),
        ("smollm", True, [257, 256]),
    ],
)
def test_a_text_gets_the_bos_that_its_tokenizer_says(pre: str, add_bos: bool | None, expected: list[int]) -> None:
    """Case L32: once, or not at all; a conversation only what its template writes."""
    tokenizer = gguf_tokenizer(gguf_file(pre, add_bos_token=add_bos), CONFIG)
    assert tokenizer.encode("Hi") == expected
    assert tokenizer.encode("Hi", add_special_tokens=False) == [256]


def test_a_conversation_has_one_bos() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    file = gguf_file("llama-bpe")
    with_template = GgufFile(file.path, {**file.metadata, "tokenizer.chat_template": template}, {}, "", "")
    ids = gguf_tokenizer(with_template, CONFIG).encode_chat([{"role": "user", "content": "Hi"}])
    assert ids == [257, 256]


def test_eos_is_added_where_the_file_says_so() -> None:
    assert gguf_tokenizer(gguf_file(add_eos_token=True), CONFIG).encode("Hi") == [256, 258]


def splits(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def oracle(pre: str) -> tokenizers.Tokenizer:
    """What the published tokenizers of a rule do, as transformers or the library itself holds it."""
    if pre == "qwen2":
        return Qwen2Tokenizer().backend_tokenizer
    tokenizer = tokenizers.Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif pre == "llama-bpe":
        pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
        split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    else:
        tokenizer.pre_tokenizer = byte_level
    return tokenizer


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe", "gpt-2", "default"])
def test_text_is_split_by_the_rule_of_the_file(pre: str) -> None:
    ours, theirs = gguf_tokenizer(gguf_file(pre), CONFIG)._backend, oracle(pre)

    @settings(max_examples=200, deadline=None)
    @given(st.one_of(words, st.text(" \n\r\t'sStTlL019aé漢.!", max_size=40)))
    def check(text: str) -> None:
        assert splits(ours, text) == splits(theirs, text)

    check()
    for text in TEXTS:
        assert splits(ours, text) == splits(theirs, text)


def test_qwen2_composes_characters() -> None:
    tokenizer = gguf_tokenizer(gguf_file("qwen2"), CONFIG)
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


def test_visible_spaces_and_byte_fallback(tmp_path: Path) -> None:
    """A SentencePiece model as tokenizer.json: ▁ is a space, <0xF0> a byte, and the first space is nobody's."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "H", "i", "▁H", "▁Hi"]
    merges = [("▁", "H"), ("▁H", "i")]
    model = models.BPE(
        {piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(fallback)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = hf_tokenizer(tmp_path, CONFIG)
    ids = tokenizer.encode("Hi 🙂")
    assert ids[0] == 1
    assert tokenizer.decode(ids) == "Hi 🙂" == backend.decode(ids)
    assert b"".join(tokenizer.token_bytes(token) for token in ids[1:]) == " Hi 🙂".encode()
    assert tokenizer.token_bytes(3 + 0xF0) == b"\xf0"


def test_half_a_surrogate_pair_is_refused(smollm2: ModelSource) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        smollm2.tokenizer.encode("\ud83d")


def test_a_decoder_that_is_not_known(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="WordPiece"):
        Tokenizer(backend, eos_ids=[])


@pytest.mark.parametrize("as_file", [True, False])
def test_the_template_of_a_folder(tmp_path: Path, as_file: bool) -> None:
    gguf_tokenizer(gguf_file(), CONFIG)._backend.save(str(tmp_path / "tokenizer.json"))
    settings_of = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    if as_file:
        (tmp_path / "chat_template.jinja").write_text(source)
    else:
        settings_of["chat_template"] = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": source}]  # type: ignore[assignment]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_of))
    tokenizer = hf_tokenizer(tmp_path, CONFIG)
    assert tokenizer.render_chat([{"role": "user", "content": "Hi"}]) == "<s>Hi</s>"


def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        gguf_tokenizer(gguf_file(), CONFIG).render_chat([{"role": "user", "content": "Hi"}])


def test_templates_too_long_to_be_one() -> None:
    with pytest.raises(CheckpointError, match="characters"):
        ChatTemplate("x" * (1 << 21), {})


PIECES = ("▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁ab", "aa", "aaa", "▁▁", "ca", "é")


def sentencepiece_file(**values: object) -> GgufFile:
    scores = np.random.default_rng(4).permutation(len(PIECES)) * -1.0
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    changed = {
        "model": "llama", "pre": None, "merges": None, "tokens": ["<unk>", "<s>", "</s>", *bytes_, *PIECES],
        "scores": [0.0] * 259 + scores.tolist(), "token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return gguf_file(**{**changed, **values})  # type: ignore[arg-type]


def joined(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece by its definition: join the neighbors that make the best piece, the leftmost first."""
    parts = list(text)
    while True:
        found = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not found:
            return parts
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_sentencepiece_from_gguf() -> None:
    file = sentencepiece_file()
    tokenizer = gguf_tokenizer(file, CONFIG)
    tokens, values = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.scores"]
    scores = dict(zip(tokens[259:], values[259:], strict=True))  # type: ignore[arg-type, index]

    @settings(max_examples=300, deadline=None)
    @given(st.text("abc é", max_size=30), st.text("🙂x", max_size=2))
    def check(text: str, other: str) -> None:
        ids = tokenizer.encode(text)
        expected = joined("▁" + text.replace(" ", "▁"), scores) if text else []
        assert [tokens[token] for token in ids] == ["<s>", *expected]  # type: ignore[index]
        assert tokenizer.decode(tokenizer.encode(text + other)) == text + other

    check()
    assert tokenizer.special_ids == {0, 1, 2}
    plain = gguf_tokenizer(sentencepiece_file(add_space_prefix=False, add_bos_token=False), CONFIG)
    assert plain.decode(plain.encode(" ab")) == " ab"
    with pytest.raises(CheckpointError, match="1 scores for"):
        gguf_tokenizer(sentencepiece_file(scores=[0.0]), CONFIG)
