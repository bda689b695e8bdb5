"""Continue prompts with a language model, all of them in one batch.

The texts go to stdout, one line of figures to stderr. With --json there is one JSON object a line for each prompt, with
token ids, finish reasons, cached tokens and times. Exit code: 0 done, 1 an output was given up, 2 a prompt, the model
or a flag cannot be used.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtk.cli.llm_options import (
    add_llm_arguments,
    add_sampling_arguments,
    engine_options,
    read_text,
    sampling_params,
)
from vtk.cli.text import printable
from vtk.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from vtk.llm_serving.results import Completion, GenerationResult
    from vtk.llm_serving.sampling.sampler import Sampled

HELP = "continue prompts with a language model"
MAX_PROMPTS_BYTES = 1 << 30
MAX_TOKENS = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, the prompts, and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_llm_arguments(parser)
    parser.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="a prompt (repeatable)")
    parser.add_argument("--prompts-file", metavar="FILE", type=Path, help="more prompts, one a line")
    parser.add_argument("--chat", action="store_true", help="send each prompt as a message, by the chat template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: a system message before each prompt")
    parser.add_argument("--n", metavar="N", type=int, default=1, help="outputs per prompt (default: 1)")
    parser.add_argument("--logprobs", metavar="N", type=int, help="with --json: log-probabilities and N alternatives")
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    add_sampling_arguments(parser, temperature=1.0, max_tokens=MAX_TOKENS)


def run(args: argparse.Namespace) -> int:
    """Load, generate, print; returns the exit code."""
    from vtk.cli.terminal import console, require_stdout

    require_stdout()
    prompts = read_prompts(args)
    params = sampling_params(args, n=args.n, logprobs=args.logprobs)
    from vtk.llm import LLM

    with LLM(args.model, **engine_options(args)) as llm:
        started = time.monotonic()
        results = llm.generate([_messages(text, args.system) if args.chat else text for text in prompts], params)
        seconds, backend = time.monotonic() - started, llm.backend
    screen = console()
    for index, (text, result) in enumerate(zip(prompts, results, strict=True)):
        if args.json:
            screen.out(json.dumps(to_json(index, text, result)), highlight=False)
        else:
            _print_texts(screen, index, result, labeled=len(prompts) > 1 or params.n > 1)
    notes = console(stderr=True, highlight=False)
    notes.print(f"{summary(results, seconds)}, on {backend}", soft_wrap=True)
    given_up = [(index, output) for index, result in enumerate(results) for output in _given_up(result)]
    for index, output in given_up:
        reason = f"error: output {output.index} of prompt {index} was given up: {output.stop_reason}."
        notes.print(reason, style="red", markup=False, soft_wrap=True)
    return 1 if given_up else 0


def read_prompts(args: argparse.Namespace) -> list[str]:
    """All prompts of the command; blank lines of a file are passed over."""
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs needs --json.")
    if args.system is not None and not args.chat:
        raise UsageError("--system needs --chat.")
    prompts = list(args.prompt)
    if args.prompts_file is not None:
        lines = read_text(args.prompts_file, MAX_PROMPTS_BYTES).splitlines()
        prompts += [line for line in lines if line.strip()]
    if not prompts:
        raise UsageError("There is no prompt.", hint="Give --prompt TEXT, or --prompts-file FILE with a prompt a line.")
    return prompts


def to_json(index: int, prompt: str, result: GenerationResult) -> dict[str, Any]:
    """A result as JSON values."""
    return {
        "index": index,
        "prompt": prompt,
        "num_prompt_tokens": result.num_prompt_tokens,
        "num_cached_tokens": result.num_cached_tokens,
        "outputs": [_completion(output) for output in result.outputs],
        "ttft_seconds": result.timings.ttft,
        "total_seconds": result.timings.total,
        "tokens_per_second": result.timings.tokens_per_second,
    }


def summary(results: Sequence[GenerationResult], seconds: float) -> str:
    """One line of figures for the whole command."""
    generated = sum(result.timings.num_tokens for result in results)
    prompt = sum(result.num_prompt_tokens for result in results)
    cached = sum(result.num_cached_tokens for result in results)
    first = [result.timings.ttft for result in results if result.timings.ttft is not None]
    ttft = f"{min(first, default=0):.2f} s" + (f" to {max(first):.2f} s" if len(first) > 1 else "")
    return (
        f"{prompt} prompt tokens ({cached} cached), {generated} tokens in {seconds:.2f} s: "
        f"{generated / seconds:.1f} tokens/s, TTFT {ttft}"
    )


def _given_up(result: GenerationResult) -> list[Completion]:
    return [output for output in result.outputs if output.finish_reason == "abort"]


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _completion(output: Completion) -> dict[str, Any]:
    logprobs = None if output.logprobs is None else [_logprob(sampled) for sampled in output.logprobs]
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "logprobs": logprobs,
    }


def _logprob(sampled: Sampled) -> dict[str, Any]:
    top = [{"token_id": token, "logprob": value} for token, value in sampled.top]
    return {"token_id": sampled.token, "logprob": sampled.logprob, "rank": sampled.rank, "top": top}


def _print_texts(screen: Console, index: int, result: GenerationResult, *, labeled: bool) -> None:
    for output in result.outputs:
        if labeled:
            screen.out(f"--- prompt {index}, output {output.index}", highlight=False)
        screen.out(printable(output.text) if screen.is_terminal else output.text, highlight=False)
