"""Files in stores that fsspec reaches (S3, Google Cloud, Azure, Hugging Face, …), read over the network when needed.

Such an input is a URL that the user wrote: on the command line, in a list, or on stdin. Nothing else is ever fetched.
HTTP needs `--allow-http` on top, since a URL of the web is what careless lists hold.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from vtk.errors import ImageError, InputError, MissingDependencyError, UsageError, VtkError
from vtk.preprocess.decode import MAX_FILE_BYTES
from vtk.sources.base import Picture, encoded
from vtk.sources.kinds import is_source
from vtk.sources.names import PICTURE_SUFFIXES, Census, clean_name, suffix_of
from vtk.sources.options import InputOptions

HTTP_SCHEMES = ("http", "https")
SCHEMES = frozenset(
    ["s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "webhdfs", "oci", "oss", "cos", "r2", "memory"]
)
SEPARATOR = "://"
CHAIN = "::"  # fsspec's: `zip://a.jpg::file:///x.zip`


def is_url(text: str) -> bool:
    """Whether an input names something by scheme: letters, digits or `+-.`, then `://`."""
    scheme, found, _ = text.partition(SEPARATOR)
    return bool(found) and scheme.isascii() and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()


def check_scheme(url: str, options: InputOptions) -> None:
    """Raise UsageError for a scheme that is not read, or not without being allowed, and for a chain of URLs."""
    scheme = url.partition(SEPARATOR)[0].lower()
    if scheme in HTTP_SCHEMES:
        if not options.allow_http:
            raise UsageError(f"{url} would be fetched over HTTP.", hint="Allow it with --allow-http.")
    elif scheme not in SCHEMES:
        raise UsageError(
            f"{url}: '{scheme}' is no store that is read here.", hint=f"Known: {', '.join(sorted(SCHEMES))}."
        )
    if CHAIN in url:
        raise UsageError(f"{url} is a chain of URLs: it would be cut at '{CHAIN}'.", hint="In a query, write %3A%3A.")


@dataclass(frozen=True)
class RemoteBlob:
    """One file of a store. path: its URL. base: a URL that opens the store. key: the file as the store names it."""

    path: str
    base: str
    key: str

    def open(self) -> BinaryIO:
        with _as_oserror():
            return cast(BinaryIO, open_store(self.base)[0].open(self.key, "rb"))

    def read_at(self, offset: int, size: int) -> bytes:
        if not size:
            return b""
        with _as_oserror():
            data = bytes(open_store(self.base)[0].cat_file(self.key, start=offset, end=offset + size))
        # A server that knows no ranges sends the whole file.
        return data if len(data) <= size else data[offset : offset + size]


@dataclass(frozen=True)
class RemoteFiles:
    """Picture files of stores, each read by one request; it has no state, so it is also the open source."""

    blobs: tuple[RemoteBlob, ...] = ()

    @property
    def path(self) -> str:
        return "URLs"

    @property
    def identity(self) -> str:
        return "files"

    def open(self) -> RemoteFiles:
        return self

    def read(self, position: int) -> Picture:
        data = self.blobs[position].read_at(0, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ImageError("too_large", f"The file has more than {MAX_FILE_BYTES:,} bytes.")
        return encoded(data)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class RemoteListing:
    """What a URL names: files in order, the folder from which they are named, and what was passed over."""

    top: str
    blobs: Sequence[RemoteBlob]
    ignored: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0


def list_url(url: str, options: InputOptions) -> RemoteListing:
    """The files of one URL: a picture or source itself, those that a pattern fits, or all below a folder.

    Raises UsageError for a scheme that may not be read, InputError when the store cannot be asked or names nothing.
    """
    check_scheme(url, options)
    web = url.lower().startswith(HTTP_SCHEMES)
    name = url.partition("?")[0] if web else url
    if web or (not glob.has_magic(url) and (is_source(name) or suffix_of(name) in PICTURE_SUFFIXES)):
        blob = RemoteBlob(url, url, open_store(url)[1])
        return RemoteListing(place_of(name).rpartition("/")[0], [blob])
    store, key = open_store(url)
    try:
        keys = store.glob(key) if glob.has_magic(key) else store.find(key)
    except Exception as error:
        raise InputError(f"{url} cannot be listed: {error or type(error).__name__}.") from error
    if not keys:
        raise InputError(f"{url} names no file.")
    folder = key.partition("*")[0].rpartition("/")[0] if glob.has_magic(key) else key.rstrip("/")
    return _sorted_out(url, folder, [str(found) for found in keys])


def place_of(url: str) -> str:
    """A URL as an absolute path, for naming: `s3://bucket/a.jpg` as `/s3/bucket/a.jpg`."""
    scheme, _, rest = url.partition(SEPARATOR)
    return f"/{scheme.lower()}/{clean_name(rest)}"


def _sorted_out(url: str, folder: str, keys: Sequence[str]) -> RemoteListing:
    scheme = url.partition(SEPARATOR)[0]
    census = Census(also=is_source if is_source(url) else None)
    kept = [key for key in sorted(keys, key=lambda key: key.split("/")) if census.wants(key.removeprefix(folder))]
    blobs = [RemoteBlob(f"{scheme}{SEPARATOR}{key.lstrip('/')}", url, key) for key in kept]
    top = place_of(f"{scheme}{SEPARATOR}{folder.lstrip('/')}")
    return RemoteListing(top, blobs, dict(census.ignored), census.hidden)


def open_store(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the URL as that file system writes it.

    Raises MissingDependencyError without fsspec or its package for the scheme, InputError when it cannot be set up.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependencyError("fsspec", needed_for=f"Reading {url}", extra="remote") from error
    try:
        store, key = url_to_fs(url)
    except ImportError as error:
        raise InputError(f"{url} cannot be read: {error}.") from error
    except Exception as error:
        raise InputError(f"{url} cannot be reached: {type(error).__name__}: {error}.") from error
    return store, str(key)


@contextmanager
def _as_oserror() -> Iterator[None]:
    """Stores raise what their client libraries raise; a picture that cannot be fetched is one kind of failure."""
    try:
        yield
    except (OSError, VtkError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
