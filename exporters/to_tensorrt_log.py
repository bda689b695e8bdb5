"""What the parser and the builder say, kept: they return None or False and tell the reason to their logger only."""

from __future__ import annotations

from typing import Any

SHOWN = 3
LONGEST = 400


class Messages:
    """Lines by severity in the order in which they came."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def summary(self, otherwise: str) -> str:
        """The first errors in one line; `otherwise` where none was logged."""
        lines = list(dict.fromkeys(self.errors))
        shown = "; ".join(line[:LONGEST] for line in lines[:SHOWN])
        more = len(lines) - SHOWN
        return (f"{shown}; … and {more} more" if more > 0 else shown) or otherwise


def make_logger(module: Any, messages: Messages) -> Any:
    """An ILogger of that library which collects into `messages`; its class can only be made once `module` is known."""
    severities = module.ILogger.Severity

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)  # pybind11 needs this call by name

        def log(self, severity: Any, msg: str) -> None:
            if severity in (severities.ERROR, severities.INTERNAL_ERROR):
                messages.errors.append(" ".join(msg.split()))
            elif severity == severities.WARNING:
                messages.warnings.append(" ".join(msg.split()))

    return Logger()


def parser_errors(parser: Any) -> list[str]:
    """Every error of an OnnxParser with the node that it is about."""
    return [_describe(parser.get_error(index)) for index in range(parser.num_errors)]


def _describe(error: Any) -> str:
    operator, name = error.node_operator(), error.node_name()
    where = f"{operator} '{name}': " if operator else ""
    return f"{where}{' '.join(str(error.desc()).split())}"
