"""Laws of every kind of archive, on names that no list of examples holds."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtk.inputs import expand
from vtk.sources.names import clean_name

Png = Callable[[int], bytes]
Write = Callable[..., Path]
Open = Callable[..., Any]

# Any script, separators, dots and blanks; no lone surrogates, which neither format can write.
PARTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join).map(lambda name: f"{name}.png")


def is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in clean_name(name).split("/"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(names=st.lists(NAMES, min_size=1, max_size=8), kind=st.sampled_from(["a.tar", "a.tar.gz", "a.zip"]))
def test_every_picture_comes_back_once(
    tmp_path: Path, png: Png, write_tar: Write, write_zip: Write, names: list[str], kind: str
) -> None:
    members = [(name, png(seed)) for seed, name in enumerate(names)] + [("last.png", png(99))]
    if kind == "a.zip":
        path = write_zip(tmp_path / kind, members)
    else:
        path = write_tar(tmp_path / kind, members, "w:gz" if kind.endswith("gz") else "w")
    plan = expand([str(path)])
    with plan.open_reader() as reader:
        found = [reader.read(item).content for item in plan.items]
    wanted = [data for name, data in members if not is_hidden(name.split("\0")[0])]
    assert found == wanted
    assert plan.hidden == len(members) - len(wanted)
    outputs = [item.output for item in plan.items]
    assert len(set(outputs)) == len(outputs)
    for output in outputs:
        parts = PurePosixPath(output).parts
        assert parts[0] == kind
        assert ".." not in parts


def test_archives_inside_archives_are_counted_and_not_entered(
    tmp_path: Path, png: Png, write_tar: Write, write_zip: Write, opened: Open
) -> None:
    """Nothing is unpacked twice over: a picture inside is one command away, and a bomb inside is none."""
    inner = write_zip(tmp_path / "inner.zip", [("x.png", png(1))]).read_bytes()
    members = [("d/inner.zip", inner), ("d/e/f/y.png", png(2))]
    for path in (write_tar(tmp_path / "o.tar", members), write_zip(tmp_path / "o.zip", members)):
        found = opened(path)
        assert found.names() == [f"{path.name}/d/e/f/y.png"]
        assert found.plan.ignored == {".zip": 1}


def test_the_search_after_damage_may_find_what_a_member_holds(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open
) -> None:
    """With the header of an inner archive lost, its members are those of the outer one: shown, and nothing is lost."""
    inner = write_tar(tmp_path / "inner.tar", [("in.png", png(1))]).read_bytes()
    path = write_tar(tmp_path / "o.tar", [("inner.tar", inner), ("out.png", png(2))])
    data = bytearray(path.read_bytes())
    data[:8] = b"\xff" * 8
    path.write_bytes(data)
    assert opened(path).bytes() == ["corrupt", png(1), png(2)]
