"""Inputs in stores, by the store in memory: nothing here touches a network."""

import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtk.errors import ImageError, InputError, MissingDependencyError, UsageError
from vtk.inputs import expand
from vtk.sources import remote
from vtk.sources.options import InputOptions
from vtk.sources.remote import RemoteBlob

pytest.importorskip("fsspec")

Png = Callable[[int], bytes]
Write = Callable[..., Path]
Open = Callable[..., Any]


def test_folders_files_and_patterns(memory_store: Any, png: Png, opened: Open) -> None:
    for seed, name in enumerate(["d/b.png", "d/a/你好.jpg", "d/.hidden/x.png", "d/notes.txt", "e/c.png"]):
        memory_store.pipe_file(f"/bucket/{name}", png(seed))
    folder = opened("memory://bucket/d")
    assert folder.names() == ["a/你好.jpg", "b.png"]
    assert folder.bytes() == [png(1), png(0)]
    assert folder.plan.ignored == {".txt": 1}
    assert folder.plan.hidden == 1
    assert [item.path for item in folder.plan.items] == ["memory://bucket/d/a/你好.jpg", "memory://bucket/d/b.png"]
    assert opened("memory://bucket/d/*.png").names() == ["b.png"]
    assert opened("memory://bucket/*/*.png").names() == ["d/b.png", "e/c.png"]
    both = opened("memory://bucket/e/c.png", "memory://bucket/d", "memory://bucket/d/b.png")
    assert both.names() == ["e/c.png", "d/a/你好.jpg", "d/b.png"]
    assert both.plan.duplicates == 1
    assert both.bytes() == [png(4), png(1), png(0)]
    assert opened("memory://bucket/{d/b,e/c}.png").bytes() == [png(0), png(4)]


def test_sources_in_stores_are_read_there(
    tmp_path: Path, memory_store: Any, png: Png, write_tar: Write, write_zip: Write, write_video: Write, opened: Open
) -> None:
    members = [(f"{seed}.png", png(seed)) for seed in range(3)]
    pq.write_table(pa.table({"image": [data for _, data in members]}), tmp_path / "t.parquet")
    paths = [
        write_tar(tmp_path / "a.tar", members),
        write_tar(tmp_path / "a.tar.gz", members, "w:gz"),
        write_zip(tmp_path / "a.zip", members),
        tmp_path / "t.parquet",
    ]
    for path in (*paths, write_video(tmp_path / "x.mp4", 2)):
        memory_store.pipe_file(f"/b/{path.name}", path.read_bytes())
    for path in paths:
        stored = opened(f"memory://b/{path.name}")
        assert stored.bytes() == [data for _, data in members]
        assert stored.plan.items[0].file_name.startswith(f"{path.name}/")
    assert opened("memory://b/a.{tar,zip}").bytes() == 2 * [data for _, data in members]
    assert opened("memory://b/*.tar").bytes() == [data for _, data in members]
    assert [pixels.shape for pixels in opened("memory://b/x.mp4").bytes()] == 2 * [(48, 64, 3)]


def test_local_and_remote_inputs_in_one_list(tmp_path: Path, memory_store: Any, png: Png, opened: Open) -> None:
    memory_store.pipe_file("/b/x.png", png(1))
    (tmp_path / "x.png").write_bytes(png(2))
    (tmp_path / "list.txt").write_text(f"memory://b/x.png\n{tmp_path / 'x.png'}\nmemory://b/gone.png\n")
    mixed = opened(tmp_path / "list.txt")
    assert mixed.bytes() == [png(1), png(2), "unreadable"]
    assert len(set(mixed.names())) == 3
    sent = pickle.loads(pickle.dumps(mixed.plan))
    with sent.open_reader() as reader:
        assert reader.read(sent.items[0]).content == png(1)


def test_a_file_beyond_the_limit(memory_store: Any, png: Png, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MAX_FILE_BYTES", 100)
    memory_store.pipe_file("/b/x.png", bytes(101))
    assert opened("memory://b/x.png").bytes() == ["too_large"]


def test_what_a_store_raises_is_a_failure_of_the_picture(
    memory_store: Any, png: Png, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_store.pipe_file("/b/x.png", png(1))
    found = opened("memory://b/x.png")

    def refuse(*args: Any, **options: Any) -> bytes:
        raise RuntimeError("token expired")

    monkeypatch.setattr(type(memory_store), "cat_file", refuse)
    assert found.bytes() == ["unreadable"]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x.png", "HTTPS://example.invalid/x.tar"])
def test_http_needs_to_be_allowed(tmp_path: Path, url: str) -> None:
    """On the command line and in a list; nothing is fetched."""
    (tmp_path / "list.txt").write_text(url + "\n")
    for text in (url, str(tmp_path / "list.txt")):
        with pytest.raises(UsageError, match="--allow-http"):
            expand([text])


@pytest.mark.parametrize(
    "url", ["ftp://host/x.png", "file:///etc/passwd", "github://a:b@/x.png", "zip://x::memory://y"]
)
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="no store that is read here"):
        expand([url], options=InputOptions(allow_http=True))


@pytest.mark.parametrize(
    "url", ["memory://a.png::file:///etc/passwd", "http://127.0.0.1:1/a.png?x=::file:///etc/passwd"]
)
def test_no_url_hides_behind_another(memory_store: Any, url: str) -> None:
    """fsspec cuts there, and hands the rest to the store as where its file lies, whatever the scheme."""
    with pytest.raises(UsageError, match="chain of URLs"):
        expand([url], options=InputOptions(allow_http=True))


def test_what_is_not_there_is_told(memory_store: Any) -> None:
    for url in ("memory://nothing", "memory://nothing/*.png"):
        with pytest.raises(InputError, match="names no file"):
            expand([url])


def test_packages_are_named_when_they_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match="s3fs"):
        expand(["s3://bucket/x.png"])
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingDependencyError, match="remote"):
        expand(["memory://bucket/x.png"])


def test_a_local_file_may_look_like_a_url(
    tmp_path: Path, png: Png, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "http:").mkdir()
    (tmp_path / "http:/x.png").write_bytes(png(1))
    monkeypatch.chdir(tmp_path)
    assert opened("http://x.png").bytes() == [png(1)]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A server of `tmp_path` on this machine that knows no ranges, as simple ones do."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_pictures_of_the_web_when_allowed(
    served: str, tmp_path: Path, png: Png, write_zip: Write, opened: Open
) -> None:
    """Signed URLs differ in their query only. Without ranges, an archive cannot be read in place, and says so."""
    pytest.importorskip("aiohttp")
    (tmp_path / "x.png").write_bytes(png(1))
    write_zip(tmp_path / "a.zip", [("y.png", png(2))])
    urls = [f"{served}/{name}" for name in ("x.png?sign=1", "x.png?sign=2", "gone.png", "a.zip?sign=3")]
    found = opened(*urls, options=InputOptions(allow_http=True))
    assert found.bytes() == [png(1), png(1), "unreadable", "corrupt"]
    assert len({item.output for item in found.plan.items}) == 4
    with pytest.raises(ImageError, match="range"):
        found.reader.read(found.plan.items[3])
    assert RemoteBlob(urls[0], urls[0], urls[0]).read_at(3, 5) == png(1)[3:8]
