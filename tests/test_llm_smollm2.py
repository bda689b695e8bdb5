"""The real model through every door: Python, asyncio, the command line, a terminal."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vtk

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
GREEDY = vtk.SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[vtk.LLM]:
    with vtk.LLM(smollm2_path, max_model_len=2048, cpu_kvcache_space=0.1) as llm:
        yield llm


def test_it_answers(llm: vtk.LLM) -> None:
    (result,) = llm.chat(QUESTION, GREEDY)
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == (ANSWER, "stop")
    text = llm.generate("The capital of France is", vtk.SamplingParams(temperature=0, max_tokens=2))[0].outputs[0].text
    assert text == " Paris."


def test_a_shared_prefix_is_computed_once(llm: vtk.LLM) -> None:
    notes = "Marie lives in Lyon with her dog Rex. " * 12
    questions = [f"{notes}\nQuestion: {question}\nAnswer:" for question in ("Where does Marie live?", "Who is Rex?")]
    results = llm.generate(questions, vtk.SamplingParams(temperature=0, max_tokens=4))
    assert sorted(result.num_cached_tokens for result in results)[0] == 0
    assert max(result.num_cached_tokens for result in results) >= 96


def test_tasks_stream_and_may_leave(llm: vtk.LLM) -> None:
    async def one(leaves: bool) -> str:
        text = ""
        stream = llm.stream_async(QUESTION, GREEDY)
        async for delta in stream:
            text += delta.text
            if leaves:
                await stream.aclose()
        return text

    async def main() -> list[str]:
        return await asyncio.gather(*(one(i % 2 == 1) for i in range(4)))

    assert asyncio.run(main()) == [ANSWER, "The", ANSWER, "The"]


@pytest.mark.parametrize("seed", range(4))
def test_what_it_says_follows_a_schema_even_when_hot(llm: vtk.LLM, seed: int) -> None:
    pytest.importorskip("xgrammar")
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "people": {"type": "integer", "minimum": 0, "maximum": 99999999},
        },
        "required": ["city", "people"],
    }
    params = vtk.SamplingParams(
        temperature=1.5,
        seed=seed,
        n=4,
        max_tokens=150,
        structured_outputs=vtk.StructuredOutputsParams(json=schema),
    )
    for output in llm.chat([{"role": "user", "content": "Describe Paris as JSON."}], params)[0].outputs:
        assert output.finish_reason == "stop"
        value = json.loads(output.text)
        assert value.keys() == {"city", "people"}
        assert len(value["city"]) <= 12
        assert type(value["people"]) is int


def test_static_batches_give_the_same_text(smollm2_path: Path, llm: vtk.LLM) -> None:
    questions = [[{"role": "user", "content": f"What is {i} + {i}?"}] for i in range(3)]
    params = vtk.SamplingParams(temperature=0, max_tokens=8)
    wanted = [result.outputs for result in llm.chat(questions, params)]
    with vtk.LLM(smollm2_path, max_model_len=512, cpu_kvcache_space=0.1, scheduling="static", max_num_seqs=2) as static:
        results = static.chat(questions, params)
    assert [result.outputs for result in results] == wanted
    assert all(result.num_cached_tokens == 0 for result in results)


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "vtk.cli.main", *words]


def test_generate_prints_json(smollm2_path: Path) -> None:
    words = ["generate", str(smollm2_path), "--prompt", QUESTION[0]["content"], "--chat", "--temperature", "0"]
    done = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["outputs"][0]["text"] == ANSWER
    assert row["num_prompt_tokens"] == 37


def test_chat_answers_a_pipe(smollm2_path: Path) -> None:
    words = ["chat", str(smollm2_path), "--temperature", "0", "--max-tokens", "20"]
    lines = f"{QUESTION[0]['content']}\nAnd of Italy?\n"
    done = subprocess.run(command(*words), input=lines, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ANSWER}\nThe capital of Italy is Rome.\n"
    assert "32 prompt tokens cached" in done.stderr


def test_no_model_is_one_clear_error(tmp_path: Path) -> None:
    words = ["chat", str(tmp_path / "none.gguf")]
    done = subprocess.run(command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "none.gguf" in done.stderr
    assert "Traceback" not in done.stderr
