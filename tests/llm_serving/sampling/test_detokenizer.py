"""Laws of growing text: nothing lost, nothing partial, nothing of a stop string, nothing late without a reason."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.llm_serving.sampling.detokenizer import Detokenizer


def feed(chunks: list[bytes], stop: tuple[str, ...] = (), *, include: bool = False) -> tuple[list[str], str | None]:
    """Each chunk is one token; returns the deltas (the last one from `finish`) and the stop string met."""
    text = Detokenizer(lambda token: chunks[token], stop, include_stop=include)
    deltas = []
    for token in range(len(chunks)):
        piece = text.push(token)
        deltas.append(piece.text)
        if piece.stop is not None:
            return deltas, piece.stop
    last = text.finish()
    return [*deltas, last.text], last.stop


def cut(data: bytes, at: list[int]) -> list[bytes]:
    borders = [0, *sorted({min(i, len(data)) for i in at}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


@given(text=st.text(), at=st.lists(st.integers(0, 200)))
def test_deltas_add_up_whatever_the_tokens_cut(text: str, at: list[int]) -> None:
    deltas, _ = feed(cut(text.encode(), at))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas) or "\ufffd" in text


@given(data=st.binary(), at=st.lists(st.integers(0, 100)))
def test_invalid_bytes_read_as_in_one_piece(data: bytes, at: list[int]) -> None:
    assert "".join(feed(cut(data, at))[0]) == data.decode(errors="replace")


def test_a_character_is_sent_when_its_last_byte_is_there() -> None:
    """Case L29: two characters in four tokens; the first does not wait for the second."""
    chunks = [b"\xe4\xbd", b"\xa0\xe5", b"\xa5", b"\xbd"]
    assert feed(chunks)[0] == ["", "你", "", "好", ""]
    assert feed([b"\xf0\x9f", b"\x99\x82"])[0] == ["", "🙂", ""]


def test_a_word_without_spaces_is_not_held() -> None:
    """Case L31."""
    assert feed([b"honor", b"ific", b"abil", b"itud"])[0] == ["honor", "ific", "abil", "itud", ""]


def test_a_stop_string_across_tokens_is_cut_out_whole() -> None:
    """Case L28: nothing of it is sent, and the text before it is whole."""
    assert feed([b"ABC", b"DE", b"FGH", b"IJ", b"K"], ("DEFGHIJ",)) == (["ABC", "", "", ""], "DEFGHIJ")
    assert feed([b" Par", b"is", b" is"], ("Pari",)) == ([" ", ""], "Pari")


def test_only_what_may_become_a_stop_string_is_held() -> None:
    deltas, stop = feed([b"one", b" tw", b"elve"], (" two",))
    assert deltas == ["one", "", " twelve", ""]
    assert stop is None


def test_held_text_comes_at_the_end() -> None:
    assert feed([b"so E", b"N"], ("END",))[0] == ["so ", "", "EN"]


def test_the_first_stop_string_in_the_text_wins() -> None:
    assert feed([b"a--b##c"], ("##", "--")) == (["a"], "--")
    assert feed([b"xxENDyy"], ("END", "ENDy")) == (["xx"], "END")


def test_the_stop_string_may_be_kept() -> None:
    assert feed([b"a", b"\n", b"\nb"], ("\n\n",), include=True) == (["a", "", "\n\n"], "\n\n")


def test_before_min_tokens_nothing_stops() -> None:
    text = Detokenizer(lambda token: [b"EN", b"D EN", b"D"][token], ("END",))
    assert text.push(0, check_stop=False).text == "EN"
    assert text.push(1, check_stop=False).text == "D EN"
    piece = text.push(2)
    assert (piece.text, piece.stop) == ("D", None), "a match may not reach into what was sent"


@given(
    text=st.text(alphabet="ab", max_size=30),
    stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    at=st.lists(st.integers(0, 30)),
)
def test_stopping_does_not_depend_on_the_cuts(text: str, stop: list[str], at: list[int]) -> None:
    """What is sent is the text before the earliest match that is complete when its token arrives."""
    deltas, met = feed(cut(text.encode(), at), tuple(stop))
    sent = "".join(deltas)
    if met is None:
        assert sent == text
        assert not any(s in text for s in stop)
    else:
        assert text.startswith(sent + met)
        assert not any(s in sent for s in stop)


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_an_empty_output_is_empty(stop: tuple[str, ...]) -> None:
    assert feed([], stop) == ([""], None)
