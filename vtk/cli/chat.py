"""Talk to a language model in the terminal.

Answers stream as they come; after each there is a line with its time to first token (TTFT) and its speed. /reset
forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops the answer. Where stdin is no terminal each of its lines
is a message; answers go to stdout, figures to stderr. Exit code: 0 done, 1 some message could not be answered, 2 the
model or a flag cannot be used.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from vtk.cli.llm_options import add_llm_arguments, add_sampling_arguments, engine_options, sampling_params
from vtk.cli.text import printable
from vtk.errors import BackendError, InputError, RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from vtk.llm import LLM
    from vtk.llm_serving.engine import Delta
    from vtk.llm_serving.sampling.params import SamplingParams

HELP = "talk to a language model"
TEMPERATURE = 0.7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_llm_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message (default: the chat template's own)")
    add_sampling_arguments(parser, temperature=TEMPERATURE, max_tokens=None)


def run(args: argparse.Namespace) -> int:
    """Load, talk until the input ends; returns the exit code."""
    from vtk.cli.terminal import console, require_stdout
    from vtk.llm import LLM

    require_stdout()
    if sys.stdin is None:
        raise InputError("stdin is closed, and the messages come from there.", hint="Send them in a pipe, one a line.")
    params = sampling_params(args)
    notes = console(stderr=True, highlight=False)
    with LLM(args.model, **engine_options(args)) as llm:
        title = f"{printable(args.model.name)} on {llm.backend}, context {llm.max_model_len}"
        notes.print(title, markup=False, style="dim")
        chat = Chat(llm, params, args.system, console(highlight=False), notes)
        if sys.stdin.isatty():
            notes.print("/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer", style="dim")
            talk(chat, notes)
        else:
            listen(chat)
    return 1 if chat.num_failed else 0


def talk(chat: Chat, notes: Console) -> None:
    """Read messages from a terminal. Ctrl-C at the prompt only clears the line."""
    with suppress(ImportError):
        import_module("readline")  # makes input() edit lines and remember them
    while _turn(chat, notes):
        pass


def _turn(chat: Chat, notes: Console) -> bool:
    """Read a message and answer it; False when there is none or it was the last."""
    try:
        return chat.take(notes.input("[bold green]>[/] "))
    except KeyboardInterrupt:  # at the prompt, or between an answer and the prompt
        notes.print("\n/exit or Ctrl-D leaves", style="dim")
        return True
    except EOFError:
        notes.print()
        return False


def listen(chat: Chat) -> None:
    """Read one message a line."""
    for line in sys.stdin:
        if not chat.take(line.rstrip("\n")):
            return


class Chat:
    """A conversation with its model and its screen."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, screen: Console, notes: Console) -> None:
        self._llm = llm
        self._params = params
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._screen = screen
        self._notes = notes
        self.num_failed = 0

    def take(self, line: str) -> bool:
        """Obey or answer one line; False when it was the last."""
        text = line.strip()
        if text == "/exit":
            return False
        if text == "/reset":
            self._messages = list(self._start)
            self._notes.print("The conversation is forgotten.", style="dim")
        elif text.startswith("/"):
            self._notes.print("Commands are /reset and /exit.", style="yellow")
        elif text:
            self._answer(text)
        return True

    def _answer(self, text: str) -> None:
        """A message that failed, or was stopped before its first token, does not stay in the conversation."""
        question = {"role": "user", "content": text}
        answer = ""
        try:
            answer = self._stream([*self._messages, question])
        except (BackendError, RequestError) as error:
            self.num_failed += 1
            self._notes.print(f"error: {printable(str(error))}", style="red", markup=False, soft_wrap=True)
        if answer:
            self._messages += [question, {"role": "assistant", "content": answer}]

    def _stream(self, messages: list[dict[str, str]]) -> str:
        """Print the answer as it comes. At a terminal, Ctrl-C ends the answer and not the program."""
        from vtk.llm_serving.core.request import FinishReason

        meter = _Meter()
        stream = self._llm.stream(messages, self._params)
        try:
            for delta in stream:
                meter.add(delta)
                self._screen.out(printable(delta.text) if self._screen.is_terminal else delta.text, end="")
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        finally:
            stream.close()
        self._screen.out("")
        if meter.last is not None and meter.last.finish_reason is FinishReason.ABORT:
            raise BackendError(f"The answer was given up: {meter.last.stop_reason}.")
        self._notes.print(meter.line(), style="dim")
        return meter.text


class _Meter:
    """The text of one answer, and how fast it came."""

    def __init__(self) -> None:
        self.text = ""
        self.last: Delta | None = None
        self._num_tokens = 0
        self._num_cached = 0
        self._start = self._last = time.monotonic()
        self._first: float | None = None

    def add(self, delta: Delta) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last
        self.text += delta.text
        self.last = delta
        self._num_tokens += len(delta.tokens)
        self._num_cached = delta.num_cached

    def line(self) -> str:
        """Tokens, time to first token, tokens a second, and what the prefix cache gave."""
        from vtk.llm_serving.results import Timings

        if self._first is None:
            return "stopped before the first token"
        ttft = self._first - self._start
        parts = [f"{self._num_tokens} tokens", f"TTFT {ttft:.2f} s"]
        rate = Timings(ttft, self._last - self._start, self._num_tokens).tokens_per_second
        if rate is not None:
            parts.append(f"{rate:.1f} tokens/s")
        return ", ".join([*parts, f"{self._num_cached} prompt tokens cached"])
