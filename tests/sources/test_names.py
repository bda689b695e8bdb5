"""Names of members, braces, and the keys of WebDataset."""

import subprocess
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import InputError
from vtk.sources.braces import expand_braces
from vtk.sources.names import Census, clean_name, key_of

NAMES = st.text(st.sampled_from("ab./\\~é\0 2"), max_size=12)


@settings(deadline=None)
@given(NAMES)
def test_a_clean_name_stays_below_its_folder(name: str) -> None:
    clean = clean_name(name)
    assert not PurePosixPath(clean).is_absolute()
    assert not {"", ".", ".."} & set(clean.split("/"))
    assert "\0" not in clean
    assert clean_name(clean) == clean


@settings(deadline=None)
@given(st.lists(NAMES, max_size=12))
def test_the_names_of_one_archive_are_unique(names: list[str]) -> None:
    census = Census()
    for name in names:
        census.add(name)
    assert len({entry.name for entry in census.entries}) == len(names)
    assert [entry.shown for entry in census.entries] == names


@pytest.mark.parametrize(
    ("name", "key"),
    [("a/b.seg.png", "a/b"), ("a.b/c", "a.b/c"), ("./x.jpg", "./x"), ("x.tar.gz", "x")],
)
def test_keys(name: str, key: str) -> None:
    """As `base_plus_ext` of webdataset splits names."""
    assert key_of(name) == key


@pytest.mark.parametrize(
    "text",
    [
        *("plain.tar", "s-{000..012}.tar", "{a,b}{1..3}", "x{3..1}y", "{08..11}", "{a,b,}.zip", "{1..1}", "s-{9..10}"),
        *("{a}", "{..}", "a{1..}b"),
    ],
)
def test_braces_as_bash_expands_them(text: str) -> None:
    shell = subprocess.run(["bash", "-c", f"printf '%s\\n' {text}"], capture_output=True, text=True, check=True)
    assert expand_braces(text) == shell.stdout.splitlines()


@pytest.mark.parametrize("text", ["{0..99999999}.tar", "{1..9999}{1..9999}"])
def test_braces_are_bounded(text: str) -> None:
    with pytest.raises(InputError, match="1,000,000"):
        expand_braces(text)
