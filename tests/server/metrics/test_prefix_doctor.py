"""Why prompts miss: the first token that differs, what stands there, and nobody else's text."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeTokenizer, make

from vtk.errors import UnavailableError
from vtk.llm_serving.core.prefix_cache import SeenPrompt
from vtk.llm_serving.core.request import ExtraKey
from vtk.llm_serving.engine import Generation, LLMEngine
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.server.prefix_doctor import INTERVAL, PrefixDoctor, PrefixReport, diagnose

RULES = " You are a helpful assistant of a bank. Answer in one sentence and never give advice."


class Characters(FakeTokenizer):
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class FakeRuntime:
    """Language models over the fake device."""

    def __init__(self, **engines: LLMEngine) -> None:
        self.engines = engines
        self.gone: set[str] = set()

    def statuses(self) -> list[Any]:
        return [SimpleNamespace(name=name, kind="llm", state="ready") for name in self.engines]

    @contextmanager
    def language(self, name: str) -> Iterator[Any]:
        if name in self.gone:
            raise UnavailableError("unloaded")
        yield SimpleNamespace(tokenizer=Characters(), loaded=SimpleNamespace(engine=self.engines[name]))


def engine() -> LLMEngine:
    return make(num_blocks=512, max_model_len=600, max_num_batched_tokens=600)


def ask(engine: LLMEngine, *texts: str, salt: str | None = None) -> None:
    for text in texts:
        name = f"r{len(engine.cache.recent())}"
        params = SamplingParams(max_tokens=1, temperature=0.0)
        engine.add(Generation(name, [ord(char) for char in text], params, cache_salt=salt))
        while engine.has_work:
            engine.step()


def doctor_of(runtime: FakeRuntime, now: list[float] | None = None) -> PrefixDoctor:
    clock = now or [0.0]
    return PrefixDoctor(runtime, clock=lambda: clock[0])  # type: ignore[arg-type]


def report(*texts: str) -> PrefixReport:
    one = engine()
    ask(one, *texts)
    (found,) = doctor_of(FakeRuntime(m=one)).reports(None)
    return found


def test_two_chats_whose_system_text_differs_at_token_12() -> None:
    """Case L10: the request says what was cached, the doctor which token was the first to differ."""
    found = report("It is about 10:20." + RULES, "It is about 20:20." + RULES)
    assert [(p.request_id, p.cached_tokens, p.first_divergent_token) for p in found.recent] == [
        ("r0", 0, None),
        ("r1", 12, 12),
    ]
    (divergence,) = found.divergences
    assert (divergence.token, divergence.character, divergence.kind) == (12, 12, "a time")
    assert divergence.values == ("10:20", "20:20")
    assert divergence.before == "It is about "
    assert divergence.same_after == len("." + RULES)
    assert "end of the system prompt" in divergence.hint


def test_a_timestamp_at_character_41() -> None:
    start = "You are the assistant of Acme Ltd. It is "
    texts = [f"{start}2026-11-29 {hour:02}:{minute:02}:00.{RULES}" for hour in (9, 10) for minute in range(10, 14)]
    found = report(*texts)
    (divergence,) = found.divergences
    assert len(start) == 41
    assert (divergence.kind, divergence.character, divergence.prompts) == ("a timestamp", 41, 7)
    assert divergence.token == 41 + len("2026-11-29 ")
    assert found.hit_rate < 0.5
    assert found.hit_rate == sum(p.cached_tokens for p in found.recent) / sum(p.prompt_tokens for p in found.recent)


def test_a_number_that_only_grows_is_a_counter() -> None:
    assert [d.kind for d in report(*(f"Request {i}:{RULES}" for i in range(8, 12))).divergences] == ["a counter"]
    assert [d.kind for d in report(*(f"Room {i}:{RULES}" for i in (70, 12, 41))).divergences] == ["a number"]


def test_user_names_are_just_text() -> None:
    (divergence,) = report(f"User Alice.{RULES}", f"User Bob.{RULES}", f"User Carol.{RULES}").divergences
    assert (divergence.kind, divergence.character, divergence.prompts) == ("text", 5, 2)
    assert divergence.values == ("Alice", "Bob", "Carol")


def test_questions_behind_a_shared_start_are_nothing_to_move() -> None:
    found = report(RULES + "How high is it?", RULES + "When was the war?", RULES + "Who wrote that?")
    assert all("nothing to move" in divergence.hint for divergence in found.divergences)


def test_a_conversation_that_goes_on_is_no_divergence() -> None:
    found = report(RULES, RULES + " And then?", RULES + " And then? What next?", RULES)
    assert found.divergences == ()
    assert [p.first_divergent_token for p in found.recent] == [None] * 4


def test_the_costliest_divergence_comes_first() -> None:
    late = [f"{RULES} Now answer user {i} of many who ask the very same thing today." for i in (5, 6)]
    early = [f"Job {i}.{RULES}" for i in range(4)]
    divergences = report(*late, *early).divergences
    assert divergences[0].kind == "a counter"
    assert divergences[0].before == "Job "


def test_nobody_is_shown_the_text_of_another_salt() -> None:
    one = engine()
    ask(one, *(f"Secret of a {i}.{RULES}" for i in range(4)), salt="a")
    ask(one, *(f"Secret of b {i}.{RULES}" for i in range(3)), salt="b")
    ask(one, *(f"Public {i}.{RULES}" for i in range(5)))
    doctor = doctor_of(FakeRuntime(m=one))
    for salt, count, start in (("a", 4, "Secret of a "), ("b", 3, "Secret of b "), (None, 5, "Public ")):
        (found,) = doctor.reports(salt)
        assert found.prompts == len(found.recent) == count
        assert [divergence.before for divergence in found.divergences] == [start]
    (found,) = doctor.reports("c")
    assert (found.prompts, found.hit_rate, found.divergences, found.recent) == (0, 0.0, (), ())
    assert doctor.reports("") == doctor.reports(None)


def test_what_warmed_the_cache_is_nobodys_prompt() -> None:
    one = engine()
    params = SamplingParams(max_tokens=1)
    one.add(Generation("warm-up-0", [ord(char) for char in f"Job 1.{RULES}"], params))
    ask(one, f"Job 2.{RULES}")
    (found,) = doctor_of(FakeRuntime(m=one)).reports(None)
    assert (found.prompts, found.divergences) == (1, ())


def test_a_positive_control_for_salts() -> None:
    """The same prompts under one salt would have shown the other's text: the comparison is what keeps them apart."""
    prompts = [
        SeenPrompt("x", (ExtraKey("salt", salt),), [ord(c) for c in f"Secret {salt}{RULES}"], 90, 0) for salt in "ab"
    ]
    assert diagnose("m", prompts, Characters().decode).divergences


def test_models_are_told_apart_and_one_unloaded_meanwhile_is_left_out() -> None:
    runtime = FakeRuntime(m=engine(), k=engine())
    ask(runtime.engines["k"], f"At 10:00.{RULES}", f"At 11:00.{RULES}")
    assert [(r.model, r.prompts) for r in doctor_of(runtime).reports(None)] == [("m", 0), ("k", 2)]
    runtime.gone.add("m")
    assert [r.model for r in doctor_of(runtime).reports(None)] == ["k"]


def test_the_log_names_the_place_and_never_the_text(caplog: pytest.LogCaptureFixture) -> None:
    one = engine()
    ask(one, *(f"It is 2026-11-29 10:{i}:00, dear customer.{RULES}" for i in range(10, 16)), salt="tenant")
    with caplog.at_level(logging.WARNING):
        doctor_of(FakeRuntime(m=one)).warn()
    (line,) = caplog.messages
    assert "a timestamp at character 6" in line
    assert "5 of them" in line
    assert "token 21" in line
    assert not any(word in line for word in ("dear", "10:1", "bank", "tenant"))


def test_the_log_repeats_itself_once_an_interval_at_most(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    runtime = FakeRuntime(m=engine(), k=engine())
    doctor = doctor_of(runtime, now)
    ask(runtime.engines["m"], *(f"At 10:{i}.{RULES}" for i in range(10, 16)))
    for moment in (0.0, 1.0, INTERVAL - 1):
        now[0] = moment
        doctor.warn()
    assert len(caplog.messages) == 1
    ask(runtime.engines["k"], *(f"At 10:{i}.{RULES}" for i in range(10, 16)))
    doctor.warn()
    assert [message[:2] for message in caplog.messages] == ["m:", "k:"]
    now[0] = INTERVAL + 1
    doctor.warn()
    assert len(caplog.messages) == 3


@pytest.mark.parametrize(
    "texts",
    [
        [f"At 10:{i}.{RULES}" for i in range(10, 13)],  # too few to tell
        [RULES + str(i) for i in range(10)],  # well cached
        [chr(65 + i) * 60 for i in range(10)],  # nothing in common
    ],
)
def test_the_log_is_silent_when_there_is_nothing_to_do(texts: list[str], caplog: pytest.LogCaptureFixture) -> None:
    one = engine()
    ask(one, *texts)
    doctor_of(FakeRuntime(m=one)).warn()
    assert caplog.messages == []


def test_the_log_compares_nobody_with_another_salt(caplog: pytest.LogCaptureFixture) -> None:
    one = engine()
    for i in range(10, 18):
        ask(one, f"At 10:{i}.{RULES}", salt=f"tenant {i}")
    doctor_of(FakeRuntime(m=one)).warn()
    assert caplog.messages == []


def test_only_the_start_of_a_long_prompt_is_kept() -> None:
    one = make(num_blocks=4000, max_model_len=12000, max_num_batched_tokens=12000)
    ask(one, "x" * 9000 + "1", "x" * 9000 + "2")
    (found,) = doctor_of(FakeRuntime(m=one)).reports(None)
    assert [p.prompt_tokens for p in found.recent] == [9001, 9001]
    assert found.recent[1].cached_tokens == 9000
    assert found.divergences == ()
