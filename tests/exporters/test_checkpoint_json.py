"""JSON beside weights: a name that occurs twice, and files that are no object."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_json import read_json, unrepeated


@given(st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.integers())))
def test_names_that_differ_are_read_as_they_are(value: dict[str, dict[str, int]]) -> None:
    assert json.loads(json.dumps(value), object_pairs_hook=unrepeated) == value


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "'a'"),
        ('{"x": [{"b": 1, "c": {}, "b": {}}]}', "'b'"),
        (f'{{"{"n" * 90}": 1, "{"n" * 90}": 2}}', f"'{'n' * 60}…'"),
    ],
)
def test_a_name_that_is_there_twice_is_named(text: str, name: str) -> None:
    with pytest.raises(ValueError, match="is there twice in one object") as caught:
        json.loads(text, object_pairs_hook=unrepeated)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", r"config\.json is not valid JSON: Expecting property name"),
        (b"\xff", r"config\.json is not valid JSON: 'utf-8' codec"),
        (b"[" * 100_000, r"config\.json is not valid JSON: maximum recursion"),
        (b"[1]", r"config\.json should hold a JSON object, not a list\."),
        (None, r"cannot be read: No such file or directory\."),
    ],
)
def test_what_is_no_object_is_refused(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=told) as caught:
        read_json(path)
    assert "\n" not in str(caught.value)
