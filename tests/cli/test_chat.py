"""`vtk chat` over a scripted model: what Ctrl-C, commands and failures do to the conversation."""

import io
import signal
from collections.abc import Callable, Generator, Iterator

import pytest
from rich.console import Console

from vtk.cli.chat import Chat, talk
from vtk.errors import RequestError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import Sampled

Step = str | Callable[[], None]


class ScriptedModel:
    """Answers each message with the next script: texts are deltas, calls happen between two of them."""

    def __init__(self, scripts: list[list[Step]]) -> None:
        self._scripts = iter(scripts)
        self.asked: list[list[dict[str, str]]] = []
        self.num_open = 0

    def stream(self, messages: list[dict[str, str]], params: SamplingParams) -> Generator[Delta, None, None]:
        self.asked.append(list(messages))
        return self._deltas(next(self._scripts))

    def _deltas(self, script: list[Step]) -> Generator[Delta, None, None]:
        self.num_open += 1
        try:
            for step in script:
                if callable(step):
                    step()
                else:
                    yield Delta("r", 0, (Sampled(1),), step, FinishReason.STOP if step == script[-1] else None)
        finally:
            self.num_open -= 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def sigint_interrupts() -> Iterator[None]:
    """A process that was started in the background inherits SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    """As the terminal does it: the handler runs in the main thread before the next statement."""
    signal.raise_signal(signal.SIGINT)


def refuse() -> None:
    raise RequestError("context_length_exceeded", "too long")


class Screen:
    """A conversation typed line by line; a callable among the lines happens at the prompt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scripts: list[list[Step]], lines: list[Step]) -> None:
        monkeypatch.setattr("sys.stdin", Terminal())
        self.model = ScriptedModel(scripts)
        self.out, self.err = io.StringIO(), io.StringIO()
        self._lines: Iterator[Step] = iter(lines)
        notes = Console(file=self.err, width=200, highlight=False)
        monkeypatch.setattr(notes, "input", self._input)
        screen = Console(file=self.out, width=200, highlight=False)
        self.chat = Chat(self.model, SamplingParams(), None, screen, notes)  # type: ignore[arg-type]  # a stand-in
        talk(self.chat, notes)

    def _input(self, prompt: str) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            raise EOFError from None
        if callable(line):
            line()
            raise AssertionError("the prompt went on after Ctrl-C")
        return line


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts: list[list[Step]] = [["Once upon", press_ctrl_c, " a time"], ["Paris"]]
    screen = Screen(monkeypatch, scripts, ["a story", "and the capital?"])
    assert screen.out.getvalue() == "Once upon\nParis\n"
    assert screen.model.asked[1] == [
        {"role": "user", "content": "a story"},
        {"role": "assistant", "content": "Once upon"},
        {"role": "user", "content": "and the capital?"},
    ]
    assert screen.model.num_open == 0


def test_ctrl_c_before_the_first_token_forgets_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, [[press_ctrl_c, "late"], ["Paris"]], ["a story", "the capital?"])
    assert screen.model.asked[1] == [{"role": "user", "content": "the capital?"}]
    assert "stopped before the first token" in screen.err.getvalue()
    assert screen.model.num_open == 0


def test_ctrl_c_at_the_prompt_only_says_how_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, [["Paris"]], [press_ctrl_c, press_ctrl_c, "the capital?"])
    assert screen.err.getvalue().count("/exit or Ctrl-D leaves") == 2
    assert screen.out.getvalue() == "Paris\n"


def test_ctrl_c_between_an_answer_and_the_prompt_keeps_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Chat.take

    def take_then_interrupt(chat: Chat, line: str) -> bool:
        going_on = take(chat, line)
        if line == "the capital?":
            press_ctrl_c()
        return going_on

    monkeypatch.setattr(Chat, "take", take_then_interrupt)
    screen = Screen(monkeypatch, [["Paris"], ["Yes"]], ["the capital?", "sure?"])
    assert screen.model.asked[1][:2] == [
        {"role": "user", "content": "the capital?"},
        {"role": "assistant", "content": "Paris"},
    ]


def test_a_refused_message_is_counted_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, [[refuse], ["Paris"]], ["much", "the capital?", "/exit", "never"])
    assert screen.chat.num_failed == 1
    assert screen.model.asked[1] == [{"role": "user", "content": "the capital?"}]
    assert "error: too long" in screen.err.getvalue()


def test_reset_forgets_and_unknown_commands_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch, [["1"], ["2"]], ["one", "/reset", "/what", "two"])
    assert screen.model.asked[1] == [{"role": "user", "content": "two"}]
    assert "Commands are /reset and /exit." in screen.err.getvalue()
