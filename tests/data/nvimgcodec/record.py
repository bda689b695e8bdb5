"""Records the signatures of an installed nvImageCodec for the tests: python record.py 0.9.0.json

The library imports without a GPU. Its signatures stand in the docstrings, one line for each overload.
"""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

METHODS = (
    "Backend.__init__",
    "CodeStream.__init__",
    "DecodeParams.__init__",
    "Decoder.__init__",
    "Decoder.decode",
    "Image.cpu",
    "Image.__array__",
)
ENUMS = ("BackendKind", "ColorSpec")
_SIGNATURE = re.compile(r"^(?:\d+\. )?(\w+\(self: .*\) -> .*)$", re.MULTILINE)


def record(library: Any) -> dict[str, Any]:
    """version; methods: name → the line of each overload; enums: name → members."""

    def signatures(path: str) -> list[str]:
        kind, name = path.split(".")
        lines = _SIGNATURE.findall(getattr(getattr(library, kind), name).__doc__)
        return [line.replace("nvidia.nvimgcodec.nvimgcodec_impl.", "") for line in lines]

    return {
        "version": library.__version__,
        "methods": {path: signatures(path) for path in METHODS},
        "enums": {name: sorted(getattr(library, name).__members__) for name in ENUMS},
    }


if __name__ == "__main__":
    found = record(importlib.import_module("nvidia.nvimgcodec"))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
