"""Tar archives and WebDataset shards: read in place, whatever they hold."""

import gzip
import io
import pickle
import random
import tarfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtk.errors import InputError
from vtk.inputs import expand
from vtk.sources import gzip_stream
from vtk.sources.base import Extent
from vtk.sources.blob import LocalBlob
from vtk.sources.gzip_stream import GzipStream
from vtk.sources.tar import TarSource, list_tar

Png = Callable[[int], bytes]
Write = Callable[..., Path]
Open = Callable[..., Any]

KINDS = [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("x.tgz", "w:gz")]


@pytest.mark.parametrize(("name", "mode"), KINDS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_come_back_in_their_order(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, name: str, mode: str, form: int
) -> None:
    """Case V45: names of any script, with spaces, and longer than the classic header holds."""
    long = f"{'d' * 90}/{'l' * 90}.png"
    members = [(key, png(seed)) for seed, key in enumerate(["你好.png", "é è/b.jpg", "a b#.JPEG", "-dash.webp", long])]
    shard = opened(write_tar(tmp_path / name, members, mode, form))
    assert shard.names() == [f"{name}/{key}" for key, _ in members]
    assert shard.bytes() == [data for _, data in members]
    first = shard.reader.read(shard.plan.items[0])
    assert first.sha256 == sha256(members[0][1]).hexdigest()
    assert shard.plan.items[1].path == f"{tmp_path / name}/é è/b.jpg"


def test_webdataset_samples_keep_their_keys(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    """`__key__` is the path up to the first dot of the last part; what is no picture is counted, not lost."""
    members = [("a/0001.jpg", png(1)), ("a/0001.json", b"{}"), ("a/0001.seg.png", png(2)), ("b.c/0002.cls.jpg", png(3))]
    shard = opened(write_tar(tmp_path / "s.tar", [*members, ("._0001.jpg", b"x"), ("a/.hidden/0003.jpg", b"x")]))
    assert [extra["key"] for extra in shard.extras()] == ["a/0001", "a/0001", "b.c/0002"]
    assert [item.output for item in shard.plan.items] == ["s.tar/a/0001", "s.tar/a/0001.seg", "s.tar/b.c/0002.cls"]
    assert shard.plan.ignored == {".json": 1}
    assert shard.plan.hidden == 2


def test_braces_name_shards_and_a_missing_one_is_an_error(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open
) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"shard-{number:03d}.tar", [("x.png", png(number))])
    shards = opened(tmp_path / "shard-{009..011}.tar")
    assert shards.names() == [f"shard-{number:03d}.tar/x.png" for number in range(9, 12)]
    assert shards.bytes() == [png(number) for number in range(9, 12)]
    with pytest.raises(InputError, match=r"shard-012\.tar"):
        expand([str(tmp_path / "shard-{009..012}.tar")])


def test_patterns_enter_archives_and_folders_do_not(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    write_tar(tmp_path / "d/one.tar", [("x.png", png(1))])
    write_tar(tmp_path / "d/two.tar", [("x.png", png(2))])
    (tmp_path / "d/y.png").write_bytes(png(3))
    assert opened(tmp_path / "d/*.tar").names() == ["one.tar/x.png", "two.tar/x.png"]
    assert opened(tmp_path / "d/**/t*.tar").names() == ["two.tar/x.png"]
    plan = opened(tmp_path / "d").plan
    assert [item.file_name for item in plan.items] == ["y.png"]
    assert plan.ignored == {".tar": 2}
    (tmp_path / "list.txt").write_text("d/one.tar\nd/y.png\nd/one.tar\n")
    listed = opened(tmp_path / "list.txt")
    assert listed.names() == ["d/one.tar/x.png", "d/y.png"]
    assert listed.plan.duplicates == 1
    assert listed.bytes() == [png(1), png(3)]


def test_names_cannot_leave_the_archive_and_stay_unique(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open
) -> None:
    """The names of members are the names of output files."""
    names = ["../../a.png", "/a.png", "a.png", "./a.png", "..\\a.png", "x/../../a.png", "a~2.png", "C:\\w\\b.png"]
    shard = opened(write_tar(tmp_path / "s.tar", [(name, png(seed)) for seed, name in enumerate(names)]))
    outputs = [item.output for item in shard.plan.items]
    assert len(set(outputs)) == len(names)
    assert all(".." not in name.split("/") and name.startswith("s.tar/") and "\\" not in name for name in outputs)
    assert shard.bytes() == [png(seed) for seed in range(len(names))]


def test_a_name_twice_is_two_pictures(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    """Case V55, inside an archive."""
    shard = opened(write_tar(tmp_path / "s.tar", [("a.png", png(1)), ("a.png", png(2)), ("a.jpg", png(3))]))
    assert shard.names() == ["s.tar/a.png", "s.tar/a~2.png", "s.tar/a.jpg"]
    assert shard.bytes() == [png(1), png(2), png(3)]


def test_links_folders_and_devices(tmp_path: Path, png: Png, opened: Open) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for name, kind in (("d.png", tarfile.DIRTYPE), ("l.png", tarfile.SYMTYPE), ("h.png", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        info = tarfile.TarInfo("a.png")
        info.size = len(png(1))
        archive.addfile(info, io.BytesIO(png(1)))
    shard = opened(tmp_path / "s.tar")
    assert shard.names() == ["s.tar/l.png", "s.tar/h.png", "s.tar/a.png"]
    assert shard.bytes() == ["unsupported", "unsupported", png(1)]


def test_an_empty_archive_holds_nothing(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    write_tar(tmp_path / "empty.tar", [])
    write_tar(tmp_path / "notes.tar", [("a.txt", b"x")])
    with pytest.raises(InputError, match=r"1 × \.txt"):
        expand([str(tmp_path / "empty.tar"), str(tmp_path / "notes.tar")])
    write_tar(tmp_path / "full.tar", [("a.png", png(1))])
    assert opened(tmp_path / "empty.tar", tmp_path / "full.tar").bytes() == [png(1)]


@pytest.mark.parametrize("data", [b"", b"no archive", bytes(range(256)) * 9])
def test_what_is_no_archive_is_one_failure(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, data: bytes
) -> None:
    """One bad shard of a thousand costs itself."""
    (tmp_path / "bad.tar").write_bytes(data)
    write_tar(tmp_path / "good.tar", [("a.png", png(1))])
    found = opened(tmp_path / "bad.tar", tmp_path / "good.tar").bytes()
    assert found[0] in ("corrupt", "truncated")
    assert found[1:] == [png(1)]


def test_a_damaged_header_costs_its_member_only(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{seed}.png", png(seed)) for seed in range(5)], form=tarfile.USTAR_FORMAT)
    data = bytearray(path.read_bytes())
    start = data.index(b"2.png\0")
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    shard = opened(path)
    assert shard.names() == ["s.tar/0.png", "s.tar/1.png", f"s.tar/damaged-at-{start}", "s.tar/3.png", "s.tar/4.png"]
    assert shard.bytes() == [png(0), png(1), "corrupt", png(3), png(4)]


NO_SIZES = [
    {"size": "-6000"},
    {"size": "-512"},
    {"size": str(10**30)},
    {"GNU.sparse.size": "many"},
    {"GNU.sparse.map": "a,b"},
    {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"},
]


@pytest.mark.parametrize("claims", NO_SIZES, ids=str)
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_member_of_impossible_size_is_damage_and_no_way_back(
    tmp_path: Path, png: Png, opened: Open, mode: str, claims: dict[str, str]
) -> None:
    """A negative size leads back to what was read: tarfile would list the same members without end."""
    path = tmp_path / ("x.tar" if mode == "w" else "x.tar.gz")
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, headers in (("first.png", {}), ("bad.png", claims), ("last.png", {})):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(png(3)), headers
            archive.addfile(info, io.BytesIO(png(3)))
    names = opened(path).names()
    assert (names[0], names[-1]) == (f"{path.name}/first.png", f"{path.name}/last.png")
    assert any("damaged-at" in name for name in names)


@pytest.mark.parametrize("field", [b"\xff" * 12, b"\xff" * 10 + b"\xf8\x00", b"\x80" + b"\xff" * 11])
def test_a_binary_size_below_zero_or_beyond_any_disk(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, field: bytes
) -> None:
    path = write_tar(tmp_path / "x.tar", [("first.png", png(1)), ("bad.png", png(2)), ("last.png", png(3))])
    data = bytearray(path.read_bytes())
    start = data.index(b"bad.png")
    data[start + 124 : start + 136] = field
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    path.write_bytes(data)
    shard = opened(path)
    assert [name.partition("-")[0] for name in shard.names()] == ["x.tar/first.png", "x.tar/damaged", "x.tar/last.png"]
    assert shard.bytes()[::2] == [png(1), png(3)]


def test_headers_that_only_name_other_headers_end(tmp_path: Path, opened: Open) -> None:
    """tarfile goes one call deeper for each."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
    (tmp_path / "x.tar").write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 3000)
    assert opened(tmp_path / "x.tar").names() == ["x.tar/damaged-at-0"]


def test_a_cut_archive_keeps_what_it_holds(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{seed}.png", png(seed)) for seed in range(4)], form=tarfile.USTAR_FORMAT)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"2.png\0") + 512 + 10])
    assert opened(path).bytes() == [png(0), png(1), "truncated", "truncated"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize(("name", "mode"), KINDS[:2])
def test_wherever_an_archive_is_cut_the_loss_is_told(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, name: str, mode: str, form: int
) -> None:
    """Also between two members, where only the missing end tells: what is left looks like a whole archive."""
    members = [(f"{'d' * 60}/{seed}{'n' * 60}.png", png(seed)) for seed in range(3)]
    path = write_tar(tmp_path / "whole.tar", members, form=form)
    data = path.read_bytes()
    with tarfile.open(path) as archive:
        starts = [info.offset for info in archive]
        last = archive.getmember(members[2][0])
    end = last.offset_data + -(-last.size // 512) * 512
    cuts = {*starts, *(start + 512 for start in starts), *range(1, end, 337), last.offset_data + last.size, end}
    cut = tmp_path / name
    for size in sorted(cuts):
        cut.write_bytes(gzip.compress(data[:size]) if mode == "w:gz" else data[:size])
        found = opened(cut).bytes()
        good = [content for content in found if isinstance(content, bytes)]
        assert good == [png(seed) for seed in range(len(good))], size
        assert set(found[len(good) :]) <= {"truncated", "corrupt"}, size
        assert len(found) > len(good), size
    for size in (end + 1, end + 512, end + 1024, len(data)):
        cut.write_bytes(gzip.compress(data[:size]) if mode == "w:gz" else data[:size])
        assert opened(cut).bytes() == [png(seed) for seed in range(3)]


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 3), (2, 4), (0, 4)])
def test_a_hole_of_zeros_is_damage_however_long(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, first: int, last: int
) -> None:
    """Downloads in parts leave one where a part is missing; between members zeros are padding, but never so many."""
    contents = [png(seed) + bytes(3 << 20) for seed in range(4)]
    path = write_tar(tmp_path / "s.tar", [(f"{seed}.png", content) for seed, content in enumerate(contents)])
    with tarfile.open(path) as archive:
        starts = [info.offset for info in archive] + [path.stat().st_size]
    data = bytearray(path.read_bytes())
    data[starts[first] : starts[last]] = bytes(starts[last] - starts[first])
    path.write_bytes(data)
    assert opened(path).bytes() == [*contents[:first], "corrupt", *contents[last:]]


def test_padding_of_large_records_is_no_damage(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    """As `tar -b 2048` leaves it, also where archives were put one behind the other."""
    one = write_tar(tmp_path / "1.tar", [("1.png", png(1))]).read_bytes()
    two = write_tar(tmp_path / "2.tar", [("2.png", png(2))]).read_bytes()
    (tmp_path / "s.tar").write_bytes(one.ljust(1 << 20, b"\0") + two.ljust(1 << 20, b"\0"))
    assert opened(tmp_path / "s.tar").bytes() == [png(1), png(2)]


@pytest.mark.parametrize("start", [0, 100, 124, 148, 156, 257])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_broken_first_header_costs_its_member_only(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, form: int, start: int
) -> None:
    """Whichever field of it: name, mode, size, checksum, kind, magic."""
    path = write_tar(tmp_path / "s.tar", [(f"{seed}.png", png(seed)) for seed in range(3)], form=form)
    data = bytearray(path.read_bytes())
    data[start : start + 4] = bytes(byte ^ 0xFF for byte in data[start : start + 4])
    path.write_bytes(data)
    shard = opened(path)
    assert shard.names() == ["s.tar/damaged-at-0", "s.tar/1.png", "s.tar/2.png"]
    assert shard.bytes() == ["corrupt", png(1), png(2)]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.6, 0.95])
def test_a_cut_gzip_keeps_what_it_holds(tmp_path: Path, png: Png, write_tar: Write, opened: Open, keep: float) -> None:
    noise = random.Random(0).randbytes(100_000)
    path = write_tar(tmp_path / "s.tar.gz", [(f"{seed}.png", png(seed) + noise) for seed in range(8)], "w:gz")
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    found = opened(path).bytes()
    good = [data for data in found if isinstance(data, bytes)]
    assert good == [png(seed) + noise for seed in range(len(good))]
    assert {0.0: 0, 0.3: 2, 0.6: 4, 0.95: 7}[keep] == len(good)
    assert set(found[len(good) :]) <= {"corrupt", "truncated", "unreadable"}
    assert len(found) > len(good)


def test_concatenated_archives_and_gzip_members(tmp_path: Path, png: Png, write_tar: Write, opened: Open) -> None:
    """`cat a.tar b.tar`, and what parallel compressors write."""
    one = write_tar(tmp_path / "1.tar", [("1.png", png(1))]).read_bytes()
    two = write_tar(tmp_path / "2.tar", [("2.png", png(2))]).read_bytes()
    (tmp_path / "s.tar").write_bytes(one + two)
    (tmp_path / "s.tar.gz").write_bytes(gzip.compress(one[:700]) + gzip.compress(one[700:] + two) + bytes(100))
    for name in ("s.tar", "s.tar.gz"):
        assert opened(tmp_path / name).bytes() == [png(1), png(2)]


def test_a_member_beyond_the_limit_is_not_read(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.sources.base.MAX_FILE_BYTES", 3000)
    path = write_tar(tmp_path / "s.tar", [("big.png", bytes(3001)), ("a.png", png(1))])
    assert opened(path).bytes() == ["too_large", png(1)]


def test_a_gzip_bomb_ends_where_it_shows(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip_stream, "FREE_BYTES", 1 << 20)
    path = write_tar(tmp_path / "s.tar.gz", [("a.png", png(1)), ("b.txt", bytes(1 << 24)), ("c.png", png(2))], "w:gz")
    assert opened(path).bytes() == [png(1), "corrupt"]


@pytest.mark.parametrize(("name", "mode"), KINDS[:2])
def test_any_thread_reads_any_member(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, name: str, mode: str
) -> None:
    shard = opened(write_tar(tmp_path / name, [(f"{seed}.png", png(seed)) for seed in range(60)], mode))
    order = list(range(60)) * 3
    random.Random(1).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shard.outcome, order))
    assert found == [png(seed) for seed in order]


def test_a_source_can_be_sent_and_opened_elsewhere(tmp_path: Path, png: Png, write_tar: Write) -> None:
    plan = expand([str(write_tar(tmp_path / "s.tar.gz", [("a.png", png(1)), ("b.png", png(2))], "w:gz"))])
    sent = pickle.loads(pickle.dumps(plan))
    assert sent.digest == plan.digest
    with sent.open_reader() as reader:
        assert reader.read(sent.items[1]).content == png(2)


@pytest.mark.parametrize(("name", "mode"), KINDS[:2])
def test_an_archive_that_vanishes_is_unreadable(
    tmp_path: Path, png: Png, write_tar: Write, opened: Open, name: str, mode: str
) -> None:
    path = write_tar(tmp_path / name, [("a.png", png(1))], mode)
    shard = opened(path)
    path.unlink()
    assert shard.bytes() == ["unreadable"]


def test_plain_members_are_read_without_reading_what_lies_before(tmp_path: Path, png: Png, write_tar: Write) -> None:
    path = write_tar(tmp_path / "s.tar", [(f"{seed}.png", png(seed)) for seed in range(20)])
    source = list_tar(LocalBlob(str(path)), zipped=False).source
    assert isinstance(source, TarSource)
    asked: list[tuple[int, int]] = []

    class Spy:
        path = ""

        def open(self) -> Any:
            raise AssertionError("nothing has to be looked up again")

        def read_at(self, offset: int, size: int) -> bytes:
            asked.append((offset, size))
            return bytes(size)

    TarSource(Spy(), False, source.places, source.keys).open().read(17)
    place = source.places[17]
    assert isinstance(place, Extent)
    assert asked == [(place.offset, len(png(17)))]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_a_gzip_stream_reads_like_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Any seeks, with states saved every kilobyte and few of them kept."""
    monkeypatch.setattr(gzip_stream, "MARK_BYTES", 1000)
    monkeypatch.setattr(gzip_stream, "CHUNK_BYTES", 300)
    monkeypatch.setattr(gzip_stream, "READ_BYTES", 77)
    monkeypatch.setattr(gzip_stream, "MAX_MARKS", 4)
    plain = random.Random(data.draw(st.integers(0, 9))).randbytes(data.draw(st.integers(0, 9000)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(plain)), max_size=3)))
    parts = [plain[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(plain)], strict=True)]
    path = tmp_path / "x.gz"
    path.write_bytes(b"".join(gzip.compress(part, data.draw(st.sampled_from([0, 6]))) for part in parts))
    stream = GzipStream(LocalBlob(str(path)))
    for start, size in data.draw(st.lists(st.tuples(st.integers(0, 9500), st.integers(0, 4000)), max_size=12)):
        stream.seek(start)
        assert stream.read(size) == plain[start : start + size]
    stream.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_damaged_the_rest_is_read(tmp_path: Path, png: Png, write_tar: Write, seed: int) -> None:
    """Bytes overwritten anywhere: members that were not touched are there, and what is lost has left a row."""
    rng = random.Random(seed)
    path = write_tar(tmp_path / "s.tar", [(f"{number}.png", png(number)) for number in range(6)])
    with tarfile.open(path) as archive:
        spans = {info.name: (info.offset, info.offset_data + info.size) for info in archive}
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(data))
        noise = rng.randbytes(min(rng.randint(1, 600), len(data) - start))
        data[start : start + len(noise)] = noise
        spans = {name: span for name, span in spans.items() if span[1] <= start or start + len(noise) <= span[0]}
    path.write_bytes(data)
    plan = expand([str(path)])
    with plan.open_reader() as reader:
        for item in plan.items:
            name = item.file_name.removeprefix("s.tar/")
            if name in spans:
                assert reader.read(item).content == png(int(name.removesuffix(".png")))
                del spans[name]
    assert not spans


def test_zlib_states_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_stream, "MARK_BYTES", 1 << 10)
    monkeypatch.setattr(gzip_stream, "CHUNK_BYTES", 1 << 9)
    monkeypatch.setattr(gzip_stream, "MAX_MARKS", 8)
    path = tmp_path / "x.gz"
    path.write_bytes(zlib.compress(random.Random(0).randbytes(1 << 18), 1, wbits=31))
    stream = GzipStream(LocalBlob(str(path)))
    assert len(stream.read()) == 1 << 18
    assert len(stream._marks) <= 8
    stream.close()
