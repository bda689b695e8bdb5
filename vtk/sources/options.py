"""What a user may decide about the inputs of a job."""

from __future__ import annotations

from dataclasses import dataclass

from vtk.errors import UsageError


@dataclass(frozen=True)
class InputOptions:
    """stride: take every n-th frame of a video.

    image_column, id_column: of Parquet tables, None to find them by name and type. null_separated: paths on stdin end
    in a NUL byte instead of a line feed. allow_http: also fetch http(s) URLs that are inputs.
    """

    stride: int = 1
    image_column: str | None = None
    id_column: str | None = None
    null_separated: bool = False
    allow_http: bool = False

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise UsageError(f"The stride must be at least 1, got {self.stride}.")


DEFAULT_OPTIONS = InputOptions()
