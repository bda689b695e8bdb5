"""ZIP archives: read in place, and never believed."""

import random
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtk.errors import InputError
from vtk.sources import zipped

Png = Callable[[int], bytes]
Write = Callable[..., Path]
Open = Callable[..., Any]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_come_back_in_their_order(
    tmp_path: Path, png: Png, write_zip: Write, opened: Open, method: int
) -> None:
    """Case V45."""
    names = ["b/你好.png", "é è.jpg", "a b#.png", "n/" * 120 + "deep.png"]
    members = [(name, png(seed)) for seed, name in enumerate(names)]
    others = [("notes.txt", b"x"), ("__MACOSX/._é è.jpg", b"x"), ("b/", b"")]
    found = opened(write_zip(tmp_path / "x.zip", [*members, *others], method))
    assert found.names() == [f"x.zip/{name}" for name in names]
    assert found.bytes() == [data for _, data in members]
    assert found.plan.ignored == {".txt": 1}
    assert found.plan.hidden == 1


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_cannot_leave_the_archive_and_stay_unique(
    tmp_path: Path, png: Png, write_zip: Write, opened: Open
) -> None:
    """What was known as "zip slip", and the names of Windows."""
    names = ["../../a.png", "/a.png", "a.png", "a.png", "..\\a.png", "x\\a.png", "x/a.png"]
    found = opened(write_zip(tmp_path / "s.zip", [(name, png(seed)) for seed, name in enumerate(names)]))
    outputs = [item.output for item in found.plan.items]
    assert len(set(outputs)) == len(names)
    assert all(".." not in name.split("/") and name.startswith("s.zip/") for name in outputs)
    assert found.bytes() == [png(seed) for seed in range(len(names))]


def test_an_archive_behind_a_program(tmp_path: Path, png: Png, write_zip: Write, opened: Open) -> None:
    path = write_zip(tmp_path / "s.zip", [("a.png", png(1)), ("b.png", png(2))])
    path.write_bytes(b"#!/bin/sh\n" + bytes(1000) + path.read_bytes())
    assert opened(path).bytes() == [png(1), png(2)]


def test_any_thread_reads_any_member(tmp_path: Path, png: Png, write_zip: Write, opened: Open) -> None:
    found = opened(write_zip(tmp_path / "s.zip", [(f"{seed}.png", png(seed)) for seed in range(40)]))
    order = list(range(40)) * 3
    random.Random(1).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(found.outcome, order)) == [png(seed) for seed in order]


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, png: Png, write_zip: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case V59, in an archive: 80 MB of zeros in 80 kB."""
    path = write_zip(tmp_path / "s.zip", [("bomb.bmp", bytes(80 << 20)), ("a.png", png(1))])
    assert path.stat().st_size < 1 << 20
    asked: list[int] = []
    real = zlib.decompressobj

    def spy(*args: Any) -> Any:
        asked.append(1)
        return real(*args)

    found = opened(path)
    monkeypatch.setattr(zipped.zlib, "decompressobj", spy)
    assert found.bytes() == ["too_large", png(1)]
    assert len(asked) == 1


def test_a_member_that_lies_about_its_size(tmp_path: Path, png: Png, write_zip: Write, opened: Open) -> None:
    """It states 100 bytes and unpacks to 10 MB: at most one byte more than stated is ever made."""
    path = write_zip(tmp_path / "s.zip", [("a.png", bytes(10 << 20)), ("b.png", png(1))])
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\1\2")
    data[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    assert opened(path).bytes() == ["corrupt", png(1)]


def test_encrypted_and_foreign_packing(tmp_path: Path, png: Png, write_zip: Write, opened: Open) -> None:
    path = write_zip(tmp_path / "s.zip", [("a.png", png(1)), ("b.png", png(2))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert opened(path).bytes() == ["unsupported", png(2)]
    write_zip(tmp_path / "l.zip", [("a.png", png(1))], zipfile.ZIP_LZMA)
    assert opened(tmp_path / "l.zip").bytes() == ["unsupported"]


def test_a_member_without_a_name_is_passed_over(tmp_path: Path, png: Png, write_zip: Write, opened: Open) -> None:
    """Names end at a NUL byte, so one that starts with it is empty."""
    path = write_zip(tmp_path / "s.zip", [("a.png", png(1)), ("b.png", png(2))])
    path.write_bytes(path.read_bytes().replace(b"a.png", b"\0.png"))
    found = opened(path)
    assert found.names() == ["s.zip/b.png"]
    assert found.plan.ignored == {"no suffix": 1}


@pytest.mark.parametrize("data", [b"", b"no archive", b"PK\3\4" + bytes(100)])
def test_what_is_no_archive_is_one_failure(tmp_path: Path, opened: Open, data: bytes) -> None:
    (tmp_path / "bad.zip").write_bytes(data)
    found = opened(tmp_path / "bad.zip")
    assert found.names() == ["bad.zip"]
    assert found.bytes() == ["corrupt"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_damaged_nothing_wrong_is_given_out(
    tmp_path: Path, png: Png, write_zip: Write, opened: Open, seed: int
) -> None:
    """The checksum of each member holds, or it is a failure; the job itself always goes on."""
    rng = random.Random(seed)
    path = write_zip(tmp_path / "s.zip", [(f"{number}.png", png(number)) for number in range(5)])
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data))
        data[start : start + 4] = rng.randbytes(min(4, len(data) - start))
    path.write_bytes(data)
    pictures = [png(number) for number in range(5)]
    try:
        outcomes = opened(path).bytes()
    except InputError:
        return  # every name was damaged into one that is no picture's
    assert all(it in pictures or it in ("corrupt", "truncated", "unsupported", "too_large") for it in outcomes)
