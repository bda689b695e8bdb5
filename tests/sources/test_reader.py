"""The reader: files and sources by one call, few of them open at a time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from vtk.errors import ImageError
from vtk.inputs import expand
from vtk.items import Item
from vtk.preprocess.decode import decode
from vtk.sources import reader as reader_module
from vtk.sources.base import Picture, encoded
from vtk.sources.reader import Reader

Png = Callable[[int], bytes]
Write = Callable[..., Path]


class Counted:
    """A source that knows how often it is open, and by how many threads it is read."""

    path = "counted"
    identity = "counted"

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.reading = 0

    def open(self) -> "Counted":
        self.opened += 1
        return self

    def read(self, position: int) -> Picture:
        self.reading += 1
        assert self.opened > self.closed
        self.reading -= 1
        return encoded(b"%d" % position)

    def close(self) -> None:
        assert not self.reading
        self.closed += 1


def item(source: int | None, position: int = 0) -> Item:
    return Item(0, "x", "x", "x", source, position)


def test_files_and_sources_by_one_reader(tmp_path: Path, png: Png, write_zip: Write) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    plan = expand([str(tmp_path / "a.png"), str(write_zip(tmp_path / "b.zip", [("c.png", png(2))]))])
    with plan.open_reader() as reader:
        found = [reader.read(it) for it in plan.items]
    assert [it.content for it in found] == [png(1), png(2)]
    assert [it.sha256 for it in found] == [sha256(png(1)).hexdigest(), sha256(png(2)).hexdigest()]
    assert [it.file_name for it in plan.items] == ["a.png", "b.zip/c.png"]


def test_few_sources_are_open_at_a_time() -> None:
    sources = [Counted() for _ in range(50)]
    with Reader(sources) as reader:
        for number in range(50):
            reader.read(item(number))
            assert sum(source.opened - source.closed for source in sources) <= reader_module.MAX_OPEN
        assert [source.opened for source in sources] == [1] * 50
        assert reader.read(item(0)).content == b"0", "a source that was closed is opened again"
    assert all(source.opened == source.closed for source in sources)


def test_no_source_is_closed_while_it_is_read() -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Counted):
        def read(self, position: int) -> Picture:
            entered.set()
            go_on.wait(10)
            return super().read(position)

    sources: list[Any] = [Slow(), *(Counted() for _ in range(20))]
    with Reader(sources) as reader, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(reader.read, item(0, 7))
        assert entered.wait(10)
        for number in range(1, 21):
            reader.read(item(number))
        assert sources[0].closed == 0
        go_on.set()
        assert slow.result().content == b"7"


def test_an_error_of_the_system_is_one_failure() -> None:
    class Broken(Counted):
        def read(self, position: int) -> Picture:
            raise OSError(5, "Input/output error")

    with Reader([Broken()]) as reader, pytest.raises(ImageError, match="Input/output error") as caught:
        reader.read(item(0))
    assert caught.value.reason == "unreadable"


def test_pixels_and_whose_they_are_not(tmp_path: Path, png: Png, write_zip: Write) -> None:
    path = write_zip(tmp_path / "b.zip", [("a.png", png(1)), ("bad.png", b"x")])
    plan = expand([str(path)])
    with plan.open_reader() as reader:
        assert (reader.pixels(plan.items[0]) == decode(png(1))).all()
        with pytest.raises(ImageError, match=r"b\.zip/bad\.png: ") as caught:
            reader.pixels(plan.items[1])
    assert caught.value.reason == "not_an_image"


@pytest.mark.parametrize("suffix", [".tar.xz", ".TAR.ZST", ".tar.bz2", ".7z"])
def test_archives_that_are_not_read_say_so(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"x")
    plan = expand([str(tmp_path / f"a{suffix}")])
    with plan.open_reader() as reader, pytest.raises(ImageError, match=r"\.tar\.gz") as caught:
        reader.read(plan.items[0])
    assert caught.value.reason == "unsupported"
