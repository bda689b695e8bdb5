"""The files of the page, read once, with the headers that keep everything else out of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.responses import Response

# No script, style, picture or connection but the server's own, nothing inline, and no text may become markup.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Page:
    """One file. etag: of its content, so that a browser that has it is told so."""

    content: bytes
    media_type: str
    etag: str

    def response(self, known_etag: str | None) -> Response:
        """The file, or 304 for a browser that has it."""
        headers = {**_HEADERS, "ETag": self.etag}
        if known_etag == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def read_pages() -> dict[str, Page]:
    """All files by name. A name that is not among them is not looked for anywhere."""
    found = (item for item in files("vtk.server.console").joinpath("static").iterdir() if item.is_file())
    return {item.name: _page(item.name, item.read_bytes()) for item in found}


def _page(name: str, content: bytes) -> Page:
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]
    return Page(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
