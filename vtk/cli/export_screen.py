"""What `vtk export` shows while it works: a status line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape

from vtk.cli.engine_options import engine_lines
from vtk.cli.text import printable
from vtk.cli.verify import print_report
from vtk.engine_builds import EngineBuild
from vtk.exporters.family import Choice
from vtk.exporters.load import LoadedModel
from vtk.exporters.precision import PrecisionPlan
from vtk.exporters.precision_files import CastGraph
from vtk.exporters.to_onnx import GraphFile
from vtk.exporting import ExportListener
from vtk.verify_report import Report


class ExportScreen(ExportListener):
    """Prints stages as they begin and what was decided; details only move the status line of a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_terminal else None
        self._title = ""

    def __enter__(self) -> ExportScreen:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def stage(self, title: str) -> None:
        self._title = title
        self._line(f"[bold]{escape(title)}[/]")
        self._update(title)

    def detail(self, text: str) -> None:
        self._update(f"{self._title}: {text}")

    def loaded(self, model: LoadedModel) -> None:
        spec, checkpoint, report = model.spec, model.checkpoint, model.report
        height, width = spec.input_hw
        self._line(
            f"  {escape(spec.family)} {escape(spec.variant)} ({spec.layout} layout), {report.matched / 1e6:.2f} M "
            f"parameters, input {height} x {width}"
        )
        others = [name for name in checkpoint.available_weights if name != checkpoint.weights]
        also = f" (the file also holds {', '.join(others)}; --weights takes them)" if others else ""
        self._line(f"  weights: {escape(checkpoint.weights)}{escape(also)}, tensors {checkpoint.tensor_digest[:12]}…")
        if report.unexpected:
            names = ", ".join(report.unexpected[:5]) + (", …" if len(report.unexpected) > 5 else "")
            self._line(f"  [yellow]not used by the model: {escape(names)}[/]")
        for choice in spec.choices:
            self._choice(choice)

    def exported(self, graphs: Sequence[GraphFile]) -> None:
        for graph in graphs:
            self._line(f"  {graph.path.name}: {graph.num_nodes} nodes, opset {graph.opset}, no lint error")
        for finding in dict.fromkeys(str(item) for graph in graphs for item in graph.lint.warnings):
            self._line(f"  [yellow]risk: {escape(finding)}[/]")

    def planned(self, graph: GraphFile, plan: PrecisionPlan) -> None:
        self._line(f"  {graph.path.name}: {len(plan.kept)} of {plan.nodes} nodes stay float32:")
        for kind, count, reason in plan.groups():
            self._line(f"    {kind} ×{count}: {escape(reason)}")

    def cast(self, graph: CastGraph) -> None:
        self._line(f"  {graph.file.path.name}: as built, {graph.share} are in half precision")

    def quantized(self, measured: str) -> None:
        self._line(f"  {escape(measured)}")

    def verified(self, report: Report) -> None:
        print_report(self._console, report)

    def engines(self, built: EngineBuild) -> None:
        for line in engine_lines(built):
            self._line(line)

    def _choice(self, choice: Choice) -> None:
        text = f"{choice.name}: {choice.value} ({choice.reason})"
        if choice.assumed:
            others = ", ".join(item for item in choice.alternatives if item != choice.value)
            text = f"assumed {text}; {choice.flag} decides" + (f" (also: {others})" if others else "")
        color = "yellow" if choice.assumed else "default"
        self._line(f"  [{color}]{escape(text)}[/]")

    def _line(self, markup: str) -> None:
        self._console.print(printable(markup), highlight=False, soft_wrap=True)

    def _update(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
