"""`vtk generate` and `vtk chat` over a fake device: what they print, take and refuse."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import PROMPT, VOCAB, greedy, loaded, row_for

from vtk.cli.main import main
from vtk.cli.terminal import show_any_text

TEXT = "".join(map(chr, PROMPT))


@pytest.fixture
def vtk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on a fake model: exit code, stdout, stderr."""
    seen: list[Any] = []

    def fake(path: Path, args: Any) -> Any:
        seen.append(args)
        return loaded(num_blocks=200, max_model_len=args.max_model_len or 400)

    monkeypatch.setattr("vtk.llm_serving.load.load_engine", fake)

    def run(*command: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = main([*command])
        out, err = capsys.readouterr()
        return code, out, " ".join(err.split())

    run.seen = seen  # type: ignore[attr-defined]
    return run


def test_one_prompt_gives_its_text_and_a_line_of_figures(vtk: Any) -> None:
    code, out, err = vtk("generate", "m", "--prompt", TEXT, "--temperature", "0", "--max-tokens", "12")
    assert (code, out) == (0, greedy(PROMPT, 12) + "\n")
    assert re.fullmatch(
        r"19 prompt tokens \(0 cached\), 12 tokens in [\d.]+ s: [\d.]+ tokens/s, TTFT [\d.]+ s, on fake", err
    )


def test_json_is_one_object_per_prompt(vtk: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"{TEXT[:9]}\n\n{TEXT[:4]}\n")
    options = ["--prompts-file", str(tmp_path / "prompts.txt"), "--json", "--n", "2", "--logprobs", "1"]
    code, out, _ = vtk("generate", "m", "--prompt", TEXT, *options, "--temperature", "0", "--max-tokens", "5")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["prompt"] for row in rows] == [TEXT, TEXT[:9], TEXT[:4]]
    assert [row["index"] for row in rows] == [0, 1, 2]
    for row in rows:
        prompt = PROMPT[: len(row["prompt"])]
        assert [output["text"] for output in row["outputs"]] == [greedy(prompt, 5)] * 2
        assert row["num_prompt_tokens"] == len(prompt)
        first = row["outputs"][0]
        assert (first["finish_reason"], first["stop_reason"]) == ("length", None)
        assert [entry["rank"] for entry in first["logprobs"]] == [1] * 5
        assert 0 < row["ttft_seconds"] <= row["total_seconds"]


def test_several_outputs_are_labeled(vtk: Any) -> None:
    options = ("--n", "2", "--seed", "1", "--temperature", "1.5", "--max-tokens", "4")
    _, out, _ = vtk("generate", "m", "--prompt", TEXT, *options)
    labels = [line for line in out.splitlines() if line.startswith("--- ")]
    assert labels == ["--- prompt 0, output 0", "--- prompt 0, output 1"]
    assert vtk("generate", "m", "--prompt", TEXT, *options)[1] == out


def test_chat_sends_messages(vtk: Any) -> None:
    options = ("--temperature", "0", "--max-tokens", "4")
    _, out, _ = vtk("generate", "m", "--prompt", "hi", "--chat", "--system", "be kind", *options)
    assert out == greedy([ord(c) for c in "be kind\nhi\n"], 4) + "\n"


def test_outputs_follow_a_grammar(vtk: Any, tmp_path: Path) -> None:
    pytest.importorskip("xgrammar")
    (tmp_path / "schema.json").write_text('{"type": "array", "items": {"type": "boolean"}, "maxItems": 2}')
    _, out, _ = vtk("generate", "m", "--prompt", TEXT, "--json-schema", str(tmp_path / "schema.json"))
    assert all(value in (True, False) for value in json.loads(out))
    assert vtk("generate", "m", "--prompt", TEXT, "--regex", "[ab]{3}x")[1].rstrip()[3] == "x"


def test_a_grammar_is_ready_before_a_model_is_loaded(vtk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that neither a missing package is told late, nor importing it counts as time between tokens."""
    monkeypatch.setattr("vtk.requirements.find_spec", lambda name: None if name == "xgrammar" else name)
    code, _, err = vtk("generate", "m", "--prompt", TEXT, "--regex", "a")
    assert (code, vtk.seen) == (2, [])
    assert "pip install 'vtk-deploy[structured]'" in err


@pytest.mark.parametrize("verb", ["chat", "generate"])
def test_help_lists_the_options_of_the_engine_together(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    engine = capsys.readouterr().out.split("\nengine:\n")[1].split("\nsampling:\n")[0]
    assert all(f"  {flag} " in engine for flag in ("--gpu-memory-utilization", "--dtype", "--max-model-len"))


def test_engine_options_reach_the_engine(vtk: Any) -> None:
    flags = "--max-model-len 350 --max-num-seqs 4 --max-num-batched-tokens 64 --block-size 8 --kv-cache-dtype int8"
    flags += " --scheduling-policy priority --no-enable-prefix-caching --enable-chunked-prefill --num-threads 1"
    assert vtk("generate", "m", "--prompt", TEXT, *flags.split())[0] == 0
    (args,) = vtk.seen
    assert (args.max_model_len, args.max_num_seqs, args.max_num_batched_tokens, args.block_size) == (350, 4, 64, 8)
    assert (args.kv_cache_dtype, args.scheduling_policy, args.num_threads) == ("int8", "priority", 1)
    assert (args.enable_prefix_caching, args.enable_chunked_prefill) == (False, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "There is no prompt."),
        ("--prompt x --logprobs 2", "--logprobs needs --json."),
        ("--prompt x --system y", "--system needs --chat."),
        ("--prompts-file none.txt", "none.txt cannot be read: No such file"),
        ("--prompt x --temperature -1", "temperature must be at least 0, got -1.0."),
        ("--prompt x --n 0", "n must be from 1 to 64, got 0."),
        ("--prompt x --kv-cache-dtype int3", "Unknown kv_cache_dtype 'int3'. One of: auto,"),
        ("--prompt x --scheduling-policy lifo", "Unknown scheduling_policy 'lifo'."),
        ("--prompt x --scheduling static --scheduling-policy priority", "Static scheduling serves in order of arrival"),
        ("--prompt x --regex a --json-schema b", "exclude each other"),
        ("--prompt x --json-schema none.json", "none.json cannot be read"),
        ('--prompt x --json-schema {"type":"object"}', "takes the name of a file that holds the schema"),
        ("--prompt x --regex (", "no regular expression"),
        ("--prompt x --max-tokens 500", "Prompt 0: The prompt has 1 tokens and max_tokens is 500"),
    ],
)
def test_what_cannot_be_used_is_one_clear_error(vtk: Any, flags: str, message: str) -> None:
    code, out, err = vtk("generate", "m", *flags.split())
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_wrong_engine_option_is_refused_before_the_model_is_read(vtk: Any) -> None:
    assert vtk("generate", "m", "--prompt", "x", "--num-threads", "0")[0] == 2
    assert not vtk.seen


def test_each_line_of_a_pipe_is_a_message(vtk: Any) -> None:
    options = ("--temperature", "0", "--max-tokens", "6")
    code, out, err = vtk("chat", "m", *options, stdin="hello\n\nand now?\n/reset\nhello\n/exit\nnever\n")
    first = greedy([ord(c) for c in "hello\n"], 6)
    second = greedy([ord(c) for c in f"hello\n{first}\nand now?\n"], 6)
    assert (code, out) == (0, f"{first}\n{second}\n{first}\n")
    assert err.count("TTFT") == 3
    assert "6 tokens, TTFT" in err
    assert "The conversation is forgotten." in err


def test_a_message_that_does_not_fit_is_told_and_forgotten(vtk: Any) -> None:
    options = ("--temperature", "0", "--max-tokens", "6", "--system", "sys")
    code, out, err = vtk("chat", "m", *options, stdin="x" * 400 + "\n/nonsense\nhello\n")
    assert (code, out) == (1, greedy([ord(c) for c in "sys\nhello\n"], 6) + "\n")
    assert "error: The prompt has 405 tokens" in err
    assert "Commands are /reset and /exit." in err


def damaged(tokens: list[int]) -> Any:
    return np.full(VOCAB, np.nan, np.float32) if len(tokens) > 8 else row_for(tokens)


def test_an_output_that_was_given_up_is_told_and_fails_the_command(vtk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_engine.row_for", damaged)
    code, out, err = vtk("generate", "m", "--prompt", "abcdef", "--temperature", "0", "--json")
    assert code == 1
    assert json.loads(out)["outputs"][0]["finish_reason"] == "abort"
    assert "error: output 0 of prompt 0 was given up: the model's logits are not numbers" in err
    code, _, err = vtk("chat", "m", "--temperature", "0", stdin="abcdef\n")
    assert code == 1
    assert "error: The answer was given up: the model's logits are not numbers" in err


def test_a_line_that_is_no_utf8_is_read_whatever_the_locale_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizer refuses it then, and the other lines are answered."""
    lines = io.TextIOWrapper(io.BytesIO(b"a\xff\nhello\n"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", lines)
    show_any_text()
    assert list(lines) == ["a\udcff\n", "hello\n"]


@pytest.mark.parametrize("verb", [["generate", "m", "--prompt", "x"], ["chat", "m"]])
def test_a_closed_stdout_is_told_before_the_model_is_read(
    vtk: Any, monkeypatch: pytest.MonkeyPatch, verb: list[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(verb) == 1
    assert not vtk.seen


def test_a_closed_stdin_has_no_messages(
    vtk: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert main(["chat", "m"]) == 2
    assert "stdin is closed" in capsys.readouterr().err
    assert not vtk.seen


@pytest.mark.parametrize("package", ["tokenizers", "jinja2"])
@pytest.mark.parametrize("command", [["generate", "model.gguf", "--prompt", "hi"], ["chat", "model.gguf"]])
def test_without_the_extra_there_is_one_line_with_the_install_command(package: str, command: list[str]) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from vtk.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2
    assert f"needs the package '{package}'" in done.stderr
    assert "pip install 'vtk-deploy[llm]'" in done.stderr
    assert "Traceback" not in done.stderr
