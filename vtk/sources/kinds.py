"""Which source a file is, told by its suffix."""

from __future__ import annotations

from vtk.sources.base import Listing, broken
from vtk.sources.blob import Blob
from vtk.sources.options import InputOptions
from vtk.sources.table import TABLE_SUFFIXES, list_table
from vtk.sources.tar import list_tar
from vtk.sources.video import VIDEO_SUFFIXES, list_video
from vtk.sources.zipped import list_zip

TAR_SUFFIXES = (".tar",)
TAR_GZ_SUFFIXES = (".tar.gz", ".tgz")
ZIP_SUFFIXES = (".zip",)
# Known, and not read: their compression gives no way to a member but through all that lies before it.
OTHER_SUFFIXES = (".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".7z", ".rar")
SOURCE_SUFFIXES = (*TAR_SUFFIXES, *TAR_GZ_SUFFIXES, *ZIP_SUFFIXES, *VIDEO_SUFFIXES, *TABLE_SUFFIXES, *OTHER_SUFFIXES)


def is_source(path: str) -> bool:
    """Whether a file of this name holds pictures instead of being one."""
    return _name(path).endswith(SOURCE_SUFFIXES)


def list_source(blob: Blob, options: InputOptions) -> Listing:
    """The pictures in a file for which `is_source` holds. What is damaged is part of the listing, never an error."""
    name = _name(blob.path)
    if name.endswith(TAR_SUFFIXES):
        return list_tar(blob, zipped=False)
    if name.endswith(TAR_GZ_SUFFIXES):
        return list_tar(blob, zipped=True)
    if name.endswith(OTHER_SUFFIXES):
        return broken(blob.path, "unsupported", "Archives are read as .tar, .tar.gz and .zip: pack it as one of them.")
    if name.endswith(VIDEO_SUFFIXES):
        return list_video(blob, options.stride)
    if name.endswith(TABLE_SUFFIXES):
        return list_table(blob, options.image_column, options.id_column)
    return list_zip(blob)


def _name(path: str) -> str:
    """In lower case, and without the query of a URL of the web, which signed ones have."""
    name = path.lower()
    return name.partition("?")[0] if name.startswith(("http://", "https://")) else name
