"""What a verification found: one check per line, each with its measured value and its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Check:
    """`measured` is a distance or a count and passes when it is at most `limit`; NaN never passes.

    stage: which step of the path from file to result. subject: what was compared. detail: where the worst value was.
    """

    stage: str
    subject: str
    measured: float
    limit: float
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.measured <= self.limit

    def to_json(self) -> dict[str, Any]:
        """`measured` is a string where it is not finite, as JSON has no such numbers."""
        measured = self.measured if math.isfinite(self.measured) else str(self.measured)
        values = {"stage": self.stage, "subject": self.subject, "passed": self.passed, "measured": measured}
        return {**values, "limit": self.limit, "detail": self.detail}

    def __str__(self) -> str:
        where = f" ({self.detail})" if self.detail else ""
        return f"{self.stage}: {self.subject} {self.measured:.3g}, allowed {self.limit:.3g}{where}"


@dataclass(frozen=True)
class Report:
    """All checks in the order of the path, and what they ran on. `not_saved`: why it is not in the bundle, if so."""

    checks: tuple[Check, ...]
    backend: str
    device: str
    batches: tuple[int, ...]
    pictures: int
    versions: Mapping[str, str]
    not_saved: str = ""

    @property
    def first_failure(self) -> Check | None:
        """The first stage that differs, or None."""
        return next((check for check in self.checks if not check.passed), None)

    @property
    def passed(self) -> bool:
        return self.first_failure is None

    def summary(self) -> dict[str, Any]:
        """What a manifest keeps."""
        failure = self.first_failure
        return {
            "passed": self.passed,
            "first_failure": None if failure is None else str(failure),
            "checks": len(self.checks),
            "backend": self.backend,
            "device": self.device,
            "batches": list(self.batches),
            "pictures": self.pictures,
            "versions": dict(self.versions),
        }

    def to_json(self) -> dict[str, Any]:
        return {**self.summary(), "results": [check.to_json() for check in self.checks]}


def worst(checks: Sequence[Check]) -> list[Check]:
    """One check per stage and subject, the one with the largest value; the order of first appearance."""
    found: dict[tuple[str, str], Check] = {}
    for check in checks:
        key = (check.stage, check.subject)
        if key not in found or _badness(check) > _badness(found[key]):
            found[key] = check
    return list(found.values())


def placed(checks: Sequence[Check], *, stage: str, prefix: str = "", detail: str = "") -> list[Check]:
    """The same checks in a stage, `prefix` before their subjects, and where they were measured."""
    return [
        replace(
            check, stage=stage, subject=prefix + check.subject, detail=", ".join(filter(None, (detail, check.detail)))
        )
        for check in checks
    ]


def _badness(check: Check) -> float:
    return math.inf if math.isnan(check.measured) else check.measured
