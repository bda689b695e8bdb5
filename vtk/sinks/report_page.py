"""The report as HTML: no script, nothing loaded from elsewhere, every name escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from vtk.naming import utf8

# A browser loads and runs nothing for this page, whatever the names in it hold.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #4a7ebb; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .15rem .6rem .15rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; width: 6rem; }
td.track { width: 55%; } td.track div { background: var(--bar); height: .8rem; margin-top: .25rem; }
tr + tr td { border-top: 1px solid var(--line); }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2.5rem; } .facts b { display: block; font-size: 1.3rem; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 1rem; }
figure { margin: 0; } figure img { max-width: 100%; display: block; }
figcaption { font-size: .8rem; overflow-wrap: anywhere; opacity: .8; }
.gap { border: 1px dashed var(--line); padding: 1rem; }
"""


@dataclass(frozen=True)
class Chart:
    """Bars: a name, a length and what is written beside it. note: what the chart leaves out."""

    title: str
    bars: Sequence[tuple[str, float, str]]
    note: str = ""


@dataclass(frozen=True)
class Tile:
    """One picture of the sheet. jpeg: None for one that could not be read, for which `caption` says why."""

    name: str
    caption: str
    jpeg: bytes | None


@dataclass(frozen=True)
class Page:
    """All that the report shows, as text that is not escaped. failures: file name, reason and message of each."""

    title: str
    facts: Sequence[tuple[str, str]]
    charts: Sequence[Chart]
    failures: Sequence[tuple[str, str, str]]
    failures_note: str
    tiles: Iterable[Tile]


def render(page: Page) -> Iterator[str]:
    """The page in parts, so that only one picture of the sheet is in memory."""
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    yield '<meta name="viewport" content="width=device-width">\n'
    yield f"<title>{_text(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{_text(page.title)}</h1>\n"
    yield '<div class="facts">\n'
    yield from (f"<div><b>{_text(value)}</b>{_text(name)}</div>\n" for name, value in page.facts)
    yield "</div>\n"
    for chart in page.charts:
        yield from _chart(chart)
    yield from _failures(page)
    yield '<h2>Pictures</h2>\n<div class="sheet">\n'
    yield from (_tile(tile) for tile in page.tiles)
    yield "</div>\n</body>\n</html>\n"


def _chart(chart: Chart) -> Iterator[str]:
    if not chart.bars:
        return
    longest = max(length for _, length, _ in chart.bars) or 1
    yield f"<h2>{_text(chart.title)}</h2>\n<table>\n"
    for name, length, label in chart.bars:
        track = f'<td class="track"><div style="width: {100 * length / longest:.1f}%"></div></td>'
        yield f'<tr><td>{_text(name)}</td>{track}<td class="number">{_text(label)}</td></tr>\n'
    yield "</table>\n" + (f"<p>{_text(chart.note)}</p>\n" if chart.note else "")


def _failures(page: Page) -> Iterator[str]:
    yield "<h2>Failures</h2>\n"
    if not page.failures:
        yield "<p>None.</p>\n"
        return
    yield "<table>\n<tr><th>picture</th><th>reason</th><th>message</th></tr>\n"
    for row in page.failures:
        yield "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>\n"
    yield "</table>\n" + (f"<p>{_text(page.failures_note)}</p>\n" if page.failures_note else "")


def _tile(tile: Tile) -> str:
    caption = f"<figcaption>{_text(tile.name)}<br>{_text(tile.caption)}</figcaption>"
    if tile.jpeg is None:
        return f'<figure><div class="gap">not shown</div>{caption}</figure>\n'
    data = base64.b64encode(tile.jpeg).decode("ascii")
    return f'<figure><img alt="" src="data:image/jpeg;base64,{data}">{caption}</figure>\n'


def _text(value: str) -> str:
    return escape(utf8(value))
