"""`--config serve.yaml`: the flags of `vtk serve` in a file, without their dashes.

::

    models: /srv/models
    host: 0.0.0.0
    api-key: /run/secrets/vtk_api_key
    max-itl-ms: 150
    cors-origin: [https://example.org]
    console: false

The file is turned into words of the command line and read by the same parser, so that both mean the same and are
checked alike. What is given on the command line itself replaces what the file says.
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any, NoReturn

from vtk.cli.llm_options import read_text
from vtk.errors import UsageError
from vtk.requirements import require

MAX_CONFIG_BYTES = 1 << 20


class ConfigParser(argparse.ArgumentParser):
    """A parser whose user is looking at a file."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}.")


def merge_config(args: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """`args` with the values of the file `args.config` where the command line says nothing.

    parser: has the arguments of the verb, every one of them None or empty unless given. Raises InputError for a file
    that cannot be read, UsageError for one that is no mapping, has an unknown key, or a value that the flag refuses.
    """
    if args.config is None:
        return args
    told = parser.parse_args(_words(_read(args.config), args.config, parser))
    given = {name: value for name, value in vars(args).items() if value not in (None, [])}
    return argparse.Namespace(**{**vars(args), **vars(told), **given})


def _read(path: Path) -> dict[str, Any]:
    require("yaml", needed_for="--config", extra="serve")
    import yaml

    text = read_text(path, MAX_CONFIG_BYTES)
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or a number that is none
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must hold lines of the form 'flag: value', for example 'port: 8000'.")
    names = [_flag(key.value) for key, _ in root.value]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"{path}: the key '{double}' is there twice.")  # YAML's reader would take the last one
    return data


def _flag(key: object) -> str:
    return str(key).replace("_", "-")


def _words(data: dict[str, Any], path: Path, parser: argparse.ArgumentParser) -> list[str]:
    actions = {name.removeprefix("--"): action for action in parser._actions for name in action.option_strings}
    positional = {action.dest: action for action in parser._actions if not action.option_strings}
    known = {name: action for name, action in (actions | positional).items() if name not in ("-h", "help", "config")}
    words: list[str] = []
    for key, value in data.items():
        name = _flag(key)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise UsageError(f"{path}: unknown key '{key}'.", hint=f"Did you mean '{near[0]}'?" if near else None)
        words += _words_of(name, known[name], value, path)
    return words


def _words_of(name: str, action: argparse.Action, value: Any, path: Path) -> list[str]:
    """One setting as it would be typed; a list repeats the flag."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: '{name}' is true or false, got {value!r}.")
        return [f"--{name}"] if value else [f"--no-{name}"] if f"--no-{name}" in action.option_strings else []
    many = isinstance(value, list)
    if many and not isinstance(action, argparse._AppendAction) and action.nargs != "*":
        raise UsageError(f"{path}: '{name}' has one value, got a list.")
    values = value if isinstance(value, list) else [value]
    for item in values:
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            raise UsageError(f"{path}: '{name}' needs a text or a number, got {item!r}.")
    return [f"--{name}={item}" if action.option_strings else str(item) for item in values]
