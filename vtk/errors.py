"""Every exception that vtk raises on purpose, one class per kind of failure.

::

    VtkError
    ├── UsageError                  a flag or argument that cannot be used as given
    ├── MissingDependencyError      an optional package is needed and not installed
    ├── InputError                  a path or list that names no usable input
    ├── ImageError                  one picture that cannot be decoded (has a short `reason`)
    ├── CheckpointError             a weight file that cannot be read
    │   ├── UnsafeCheckpointError   reading it would run code
    │   └── WeightsMismatchError    its tensors do not fill the model
    ├── UnknownFamilyError          no family recognizes the tensors
    ├── AmbiguousError              the tensors admit two readings; a flag decides
    ├── ExportError                 the graph could not be made
    │   └── LintError               the graph was made and breaks a rule
    ├── BundleError                 a folder that is not a whole, current bundle
    ├── RequestError                a generation request that can never be served (has OpenAI's `code`)
    ├── BackendError                an engine or its device cannot be used as asked
    ├── NotFoundError               no model of that name or version is served
    ├── AccessError                 a request without a key that the server knows
    ├── OverloadedError             the server is full; `retry_after` seconds may help
    ├── UnavailableError            the server or the model is starting, draining or gone
    ├── DeadlineError               the answer would have come after the request's deadline
    ├── VerifyError                 the artifact does not reproduce its source
    └── OutputError                 results that cannot be written

A message says what was expected and what came; `hint` says what to do. The command line prints both without a
traceback and exits with `exit_code`: 2 for input that cannot be used, 1 for work that was done and failed.
"""

from __future__ import annotations

from typing import ClassVar


class VtkError(Exception):
    """Base of all errors that a user can cause or fix."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


class UsageError(VtkError):
    """A flag or argument that cannot be used as given."""


class MissingDependencyError(VtkError):
    """An optional package is needed; `hint` holds the install command."""

    def __init__(self, package: str, *, needed_for: str, extra: str) -> None:
        super().__init__(
            f"{needed_for} needs the package '{package}', which is not installed.",
            hint=f"Run: pip install 'vtk-deploy[{extra}]'",
        )


class InputError(VtkError):
    """A path, pattern or list that names no usable input."""


class ImageError(VtkError):
    """One picture that cannot be decoded.

    `reason` is a stable word for ledgers: empty, not_an_image, unsupported, truncated, corrupt, too_large, unreadable;
    on the server also refused, for a URL that is not fetched.
    """

    def __init__(self, reason: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class CheckpointError(VtkError):
    """A weight file that cannot be read."""


class UnsafeCheckpointError(CheckpointError):
    """Reading the file would import or run code that it names."""


class WeightsMismatchError(CheckpointError):
    """The tensors of a checkpoint do not fill the model that they were recognized as."""


class UnknownFamilyError(VtkError):
    """No registered family recognizes the tensors."""


class AmbiguousError(VtkError):
    """The tensors admit more than one reading and the choice changes results; a flag decides."""


class ExportError(VtkError):
    """The graph could not be made."""


class LintError(ExportError):
    """The graph was made and breaks a rule that an engine needs."""


class BundleError(VtkError):
    """A folder that is not a whole bundle of a known schema version."""


class BackendError(VtkError):
    """An engine, or the device it was asked to use, is not there or not usable."""


class RequestError(VtkError):
    """A generation request that can never be served as asked; `code` is OpenAI's word for the kind."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class NotFoundError(VtkError):
    """No model of that name or version is served."""


class AccessError(VtkError):
    """A request without a key that the server knows."""


class OverloadedError(VtkError):
    """A queue is full. `retry_after`: seconds after which another try is sensible."""

    def __init__(self, message: str, *, retry_after: float = 1.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class UnavailableError(VtkError):
    """The server or the model is starting, draining or gone."""


class DeadlineError(VtkError):
    """The answer would have come after the request's deadline."""


class VerifyError(VtkError):
    """The artifact ran and does not reproduce its source; names the first stage that differs."""

    exit_code: ClassVar[int] = 1


class OutputError(VtkError):
    """Results cannot be written (disk full, read-only); what was written stays whole and the job can be resumed."""

    exit_code: ClassVar[int] = 1


def in_short(text: str) -> str:
    """What came, as a message quotes it: 60 characters of it at most."""
    return text if len(text) <= 60 else f"{text[:60]}…"
