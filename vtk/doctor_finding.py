"""What `vtk doctor` found about one thing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "missing", "broken"]
# y = Identity(x), float32 of shape (1,), opset 17: the smallest graph that shows which device runs a session.
TINY_GRAPH = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a"
    "08080112040a020801620f0a0179120a0a08080112040a02080142040a001011"
)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. fix: what to do where the state is not ok."""

    subject: str
    state: State
    found: str
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)
