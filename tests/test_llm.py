"""vtk.LLM over a fake device: what it takes, gives and refuses."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from fake_engine import PROMPT, greedy, loaded

import vtk
from vtk.errors import BackendError, MissingDependencyError, RequestError, UsageError
from vtk.llm_serving.args import EngineArgs, EngineOptions

TEXT = "".join(map(chr, PROMPT))
GREEDY = vtk.SamplingParams(temperature=0, max_tokens=12)
Open = Callable[..., vtk.LLM]


@pytest.fixture
def open_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """LLM over a fake engine with these settings."""
    opened: list[vtk.LLM] = []

    def open_with(**settings: Any) -> vtk.LLM:
        monkeypatch.setattr("vtk.llm_serving.load.load_engine", lambda path, args: loaded(**settings))
        opened.append(vtk.LLM("model"))
        return opened[-1]

    yield open_with
    for llm in opened:
        llm.close()
        pool = llm._loaded.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks


def test_results_come_in_the_order_of_the_prompts(open_llm: Open) -> None:
    llm = open_llm(max_num_seqs=3)
    prompts = [TEXT[: 3 + i] for i in range(8)]
    params = [vtk.SamplingParams(temperature=0, max_tokens=12 - i) for i in range(8)]
    results = llm.generate(prompts, params)
    assert [result.prompt for result in results] == prompts
    assert [result.outputs[0].text for result in results] == [greedy(PROMPT[: 3 + i], 12 - i) for i in range(8)]
    assert [result.num_prompt_tokens for result in results] == [3 + i for i in range(8)]


def test_a_prompt_is_a_text_or_ids_or_messages(open_llm: Open) -> None:
    llm = open_llm()
    one = llm.generate(TEXT, GREEDY)
    assert len(one) == 1
    assert llm.generate(PROMPT, GREEDY)[0].outputs == one[0].outputs
    mixed = llm.generate([TEXT, PROMPT, [{"role": "user", "content": TEXT}]], GREEDY)
    assert [result.prompt for result in mixed] == [TEXT, None, None]
    assert [result.num_prompt_tokens for result in mixed] == [19, 19, 20]
    chats = llm.chat([[{"role": "user", "content": TEXT}]] * 2, GREEDY)
    assert [chat.outputs[0].text for chat in chats] == [greedy([*PROMPT, 10], 12)] * 2
    assert llm.generate([], GREEDY) == []


def test_a_result_tells_everything(open_llm: Open) -> None:
    llm = open_llm()
    whole = greedy(PROMPT, 12)
    params = vtk.SamplingParams(temperature=0, max_tokens=12, n=2, stop=(whole[5],), logprobs=1, prompt_logprobs=0)
    (result,) = llm.generate(TEXT, params)
    assert [output.index for output in result.outputs] == [0, 1]
    output = result.outputs[1]
    assert output.text == whole[: whole.index(whole[5])]
    assert (output.finish_reason, output.stop_reason) == ("stop", whole[5])
    assert output.token_ids == tuple(map(ord, whole[: len(output.text) + 1]))
    assert output.logprobs is not None
    assert [sampled.token for sampled in output.logprobs] == list(output.token_ids)
    assert result.prompt_logprobs is not None
    assert len(result.prompt_logprobs) == 19
    assert result.timings.ttft is not None
    assert 0 < result.timings.ttft <= result.timings.total
    assert llm.generate(TEXT, GREEDY)[0].num_cached_tokens == 16
    assert llm.generate(TEXT, GREEDY)[0].outputs[0].logprobs is None


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (3, "got int"),
        ({"role": "user"}, "got dict"),
        ([TEXT, 3], "Prompt 1: A prompt is a text"),
        ([[True]], "Prompt 0: A prompt is a text"),
        ([TEXT, []], "Prompt 1: A prompt is a text"),
        ([TEXT, ""], "Prompt 1: .* at least one prompt token"),
        ([[1, 128]], "Prompt 0: Token ids of this model are 0 to 127; got 128"),
        ([TEXT, "x" * 200], "Prompt 1: The prompt has 200 tokens"),
        ([[{"content": "x"}]], "Prompt 0: Message 0 needs a 'role'"),
    ],
)
def test_a_wrong_prompt_is_named_before_anything_starts(open_llm: Open, prompts: Any, message: str) -> None:
    steps: list[None] = []
    llm = open_llm(before_step=lambda: steps.append(None))
    with pytest.raises((RequestError, UsageError), match=message):
        llm.generate(prompts, GREEDY)
    assert not steps


def test_other_wrong_arguments_are_refused(open_llm: Open) -> None:
    llm = open_llm()
    with pytest.raises(UsageError, match="2 prompts and 1 sampling_params"):
        llm.generate([TEXT, TEXT], [GREEDY])
    with pytest.raises(UsageError, match="A conversation is a list of messages"):
        llm.chat(TEXT)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="exceed the context"):
        llm.stream("x" * 200)
    with pytest.raises(UsageError, match="no option 'max_len'"):
        vtk.LLM("model", max_len=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="Unknown backend 'gpu'"):
        vtk.LLM("model", backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="A model is the path of a GGUF file or a folder, got None"):
        vtk.LLM(None)  # type: ignore[arg-type]
    wrong: list[Any] = [None, {"max_tokens": 3}, [None]]
    for params in wrong:
        with pytest.raises(UsageError, match="sampling_params are SamplingParams"):
            llm.generate(TEXT, params)
    with pytest.raises(UsageError, match="got bytes"):
        llm.generate(b"text")  # type: ignore[arg-type]


def test_options_are_the_fields_of_engine_args() -> None:
    hints = get_type_hints(EngineArgs)
    assert get_type_hints(EngineOptions) == {field.name: hints[field.name] for field in fields(EngineArgs)}


def test_a_missing_package_is_named_with_its_extra(open_llm: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = open_llm()
    monkeypatch.setattr("vtk.requirements.find_spec", lambda package: None)
    with pytest.raises(MissingDependencyError, match=r"vtk-deploy\[llm\]"):
        vtk.LLM("model")
    structured = vtk.SamplingParams(structured_outputs=vtk.StructuredOutputsParams(regex="a"))
    with pytest.raises(MissingDependencyError, match=r"vtk-deploy\[structured\]"):
        llm.generate(TEXT, structured)


def test_streams_come_in_pieces_and_may_be_left(open_llm: Open) -> None:
    llm = open_llm()
    deltas = list(llm.stream(TEXT, GREEDY))
    assert len(deltas) == 12
    assert "".join(delta.text for delta in deltas) == greedy(PROMPT, 12)
    stream = llm.stream(TEXT, vtk.SamplingParams(temperature=0, max_tokens=150))
    next(stream)
    stream.close()
    assert llm.generate(TEXT, GREEDY)[0].outputs[0].text == greedy(PROMPT, 12)


def test_tasks_share_it(open_llm: Open) -> None:
    llm = open_llm()

    async def one(length: int) -> str:
        return "".join([delta.text async for delta in llm.stream_async(TEXT[:length], GREEDY)])

    async def main() -> list[str]:
        return await asyncio.gather(*(one(1 + i) for i in range(10)))

    assert asyncio.run(main()) == [greedy(PROMPT[: 1 + i], 12) for i in range(10)]


def test_a_failed_step_is_one_error(open_llm: Open, caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True])

    def fail() -> None:
        if next(failures, False):
            raise MemoryError("no room")

    llm = open_llm(before_step=fail)
    with pytest.raises(BackendError, match="MemoryError: no room"):
        llm.generate([TEXT] * 5, GREEDY)
    assert llm.generate(TEXT, GREEDY)[0].outputs[0].text == greedy(PROMPT, 12)


def test_ctrl_c_while_prompts_are_sent_drops_those_that_were(open_llm: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    llm = open_llm(before_step=lambda: gate.wait(20))
    submit, sent = llm._loop.submit, iter([True, True])

    def interrupted(*arguments: Any) -> Any:
        if next(sent, False):
            return submit(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(llm._loop, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([TEXT] * 4, vtk.SamplingParams(temperature=0, max_tokens=150))
    monkeypatch.setattr(llm._loop, "submit", submit)
    gate.set()
    assert llm.generate(TEXT, GREEDY)[0].outputs[0].text == greedy(PROMPT, 12)
    assert llm._loop.num_live == 0, "the dropped ones went on"


def test_after_close_it_answers_with_an_error(open_llm: Open) -> None:
    with open_llm() as llm:
        llm.generate(TEXT, GREEDY)
    llm.close()
    with pytest.raises(BackendError, match="closed"):
        llm.generate(TEXT, GREEDY)


def test_a_forgotten_one_ends_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtk.llm_serving.load.load_engine", lambda path, args: loaded())
    before = set(threading.enumerate())
    llm = vtk.LLM("model")
    (thread,) = [thread for thread in threading.enumerate() if thread not in before]
    llm.generate(TEXT, GREEDY)
    del llm
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
