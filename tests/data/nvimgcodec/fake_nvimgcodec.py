"""An nvImageCodec that takes exactly the calls of a recorded API and decodes by Pillow."""

import inspect
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SURFACE = json.loads(Path(__file__).with_name("0.9.0.json").read_text())


def _signature(line: str) -> inspect.Signature:
    """Of a recorded line, whose defaults may be no expressions."""
    scope: dict[str, Any] = {}
    source = re.sub(r"<[^>]*>", "None", line)
    exec(f"from __future__ import annotations\ndef {source}: ...", scope)
    return inspect.signature(scope[line.partition("(")[0]])


SIGNATURES = {path: [_signature(line) for line in lines] for path, lines in SURFACE["methods"].items()}


def check(path: str, *arguments: Any, **named: Any) -> None:
    """Raise TypeError for a call that no recorded overload takes."""
    if not any(_takes(signature, arguments, named) for signature in SIGNATURES[path]):
        raise TypeError(f"{path}(): incompatible function arguments: {arguments} {named}")


def _takes(signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        signature.bind(None, *arguments, **named)
    except TypeError:
        return False
    return True


class Recorded:
    """Base of what is made by a call and only holds its arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        check(f"{type(self).__name__}.__init__", *arguments, **named)
        self._arguments, self._named = arguments, named


class Backend(Recorded):
    pass


class CodeStream(Recorded):
    pass


class DecodeParams(Recorded):
    pass


class DeviceImage:
    def __init__(self, pixels: npt.NDArray[np.uint8]) -> None:
        self._pixels = pixels

    def cpu(self) -> Any:
        return HostImage(self._pixels)

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[np.uint8]:
        raise RuntimeError("The image data is in GPU device memory.")


class HostImage(DeviceImage):
    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[np.uint8]:
        return self._pixels


class Library:
    """The module. `asked` holds what was decoded; `refuse` and `fail` name bytes that give None and RuntimeError."""

    def __init__(self, *, works: bool = True) -> None:
        self.asked: list[bytes] = []
        self.refuse: set[bytes] = set()
        self.fail: set[bytes] = set()
        self.Backend, self.CodeStream, self.DecodeParams = Backend, CodeStream, DecodeParams
        self.BackendKind, self.ColorSpec = (
            SimpleNamespace(**{name: name for name in SURFACE["enums"][kind]}) for kind in ("BackendKind", "ColorSpec")
        )
        library = self

        class Decoder(Recorded):
            def decode(self, *arguments: Any, **named: Any) -> DeviceImage | None:
                check("Decoder.decode", *arguments, **named)
                assert named["params"]._named == {"apply_exif_orientation": False, "color_spec": "SRGB"}
                (stream,) = arguments
                return library.decoded(stream._arguments[0]) if works else None

        self.Decoder = Decoder

    def decoded(self, data: bytes) -> DeviceImage | None:
        self.asked.append(data)
        if data in self.fail:
            raise RuntimeError("nvJPEG status 8")
        if data in self.refuse:
            return None
        return DeviceImage(np.array(Image.open(io.BytesIO(data)).convert("RGB")))
