"""Loaded by Python before anything else: whatever would leave the machine or install something is told and refused."""

import os
import sys
from pathlib import Path
from typing import Any

LOADERS = {"pip", "pip3", "uv", "conda", "apt-get", "curl", "wget", "git"}


def refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in ("127.0.0.1", "::1"):
        what = f"connect {args[1]}"
    elif event == "socket.getaddrinfo" and args[0] not in ("127.0.0.1", "localhost", "::1", None):
        what = f"resolve {args[0]}"
    elif event == "subprocess.Popen" and LOADERS & {Path(str(word)).name for word in args[1]}:
        what = f"run {args[1]}"
    else:
        return
    with Path(os.environ["BLOCKED_LOG"]).open("a") as log:
        log.write(f"{what}\n")
    raise PermissionError(what)


sys.addaudithook(refuse)
