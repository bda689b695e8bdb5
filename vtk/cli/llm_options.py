"""Arguments that the language verbs share: how the engine is set up, and how tokens are drawn."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vtk.errors import InputError, UsageError
from vtk.requirements import require_llm, require_structured

if TYPE_CHECKING:
    from vtk.llm_serving.args import EngineOptions
    from vtk.llm_serving.sampling.params import SamplingParams
    from vtk.llm_serving.sampling.structured import StructuredOutputsParams

MAX_SCHEMA_BYTES = 1 << 20


def add_llm_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL and the options of the engine, with vLLM's names; read back by `engine_options`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="GGUF file, or folder with safetensors and tokenizer")
    group = add_engine_arguments(parser)
    # vtk serve has this flag for all of its models.
    group.add_argument("--gpu-memory-utilization", metavar="X", type=float, help="of a GPU's memory (default: 0.9)")


def add_engine_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The options of the engine alone, all of them None unless given; read back by `engine_options`. Their group."""
    group = parser.add_argument_group("engine", "Names and meanings are vLLM's where it has them.")
    group.add_argument("--max-model-len", metavar="N", type=int, help="tokens of prompt and output (default: model's)")
    group.add_argument("--max-num-seqs", metavar="N", type=int, help="sequences in a batch (default: 128)")
    group.add_argument("--max-num-batched-tokens", metavar="N", type=int, help="tokens in a step (default: 512)")
    group.add_argument("--long-prefill-token-threshold", metavar="N", type=int, help="tokens of one prompt in a step")
    group.add_argument("--block-size", metavar="N", type=int, help="tokens in a KV block (default: 16)")
    group.add_argument("--num-gpu-blocks-override", metavar="N", type=int, help="KV blocks, whatever the device")
    group.add_argument("--cpu-kvcache-space", metavar="GIB", type=float, help="KV memory on the CPU (default: 0.5)")
    group.add_argument("--kv-cache-dtype", metavar="TYPE", help="auto, float32, float16, bfloat16, int8 or fp8")
    group.add_argument("--dtype", metavar="TYPE", help="of a GPU's weights: auto, float32, float16 or bfloat16")
    for name in ("enable-prefix-caching", "enable-chunked-prefill"):
        group.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help="on by default")
    group.add_argument("--scheduling", metavar="HOW", help="continuous (default), or static: fixed batches, no cache")
    group.add_argument("--scheduling-policy", metavar="NAME", help="fcfs (default), priority or short_first")
    group.add_argument("--linear-mode", metavar="MODE", help="exact (default) or quantized: activations in 8 bits")
    group.add_argument("--backend", metavar="NAME", help="auto (default), cuda, cpu or reference")
    group.add_argument("--num-threads", metavar="N", type=int, help="threads that compute (default: all cores)")
    group.add_argument("--cpu-affinity", metavar="CORES", help="cores that compute: 0-3,8 or a NUMA node, node0")
    return group


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """What was given, for `LLM(model, **options)`; the engine's own defaults hold for the rest.

    Raises MissingDependencyError where the engine cannot even be described.
    """
    require_llm()
    from vtk.llm_serving.args import EngineOptions

    given = {name: getattr(args, name) for name in EngineOptions.__annotations__}
    return cast("EngineOptions", {name: value for name, value in given.items() if value is not None})


def add_sampling_arguments(parser: argparse.ArgumentParser, *, temperature: float, max_tokens: int | None) -> None:
    """How tokens are drawn; read back by `sampling_params`."""
    limit = "up to the context" if max_tokens is None else str(max_tokens)
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens", metavar="N", type=int, default=max_tokens, help=f"tokens of an output (default: {limit})"
    )
    group.add_argument(
        "--temperature", metavar="X", type=float, default=temperature, help=f"0 is greedy (default: {temperature})"
    )
    group.add_argument("--top-p", metavar="X", type=float, default=1.0, help="likeliest tokens of this total (0..1)")
    group.add_argument("--top-k", metavar="N", type=int, default=0, help="the N likeliest tokens (0: all)")
    group.add_argument("--min-p", metavar="X", type=float, default=0.0, help="tokens at least X as likely as the best")
    group.add_argument("--repetition-penalty", metavar="X", type=float, default=1.0, help="above 1: repeat less")
    group.add_argument("--presence-penalty", metavar="X", type=float, default=0.0, help="-2..2, once per token")
    group.add_argument("--frequency-penalty", metavar="X", type=float, default=0.0, help="-2..2, per occurrence")
    group.add_argument("--seed", metavar="N", type=int, help="makes the output repeatable")
    group.add_argument("--stop", metavar="TEXT", action="append", default=[], help="ends the output (repeatable)")
    group.add_argument("--json-schema", metavar="FILE", type=Path, help="the output is JSON that follows this schema")
    group.add_argument("--regex", metavar="PATTERN", help="the output matches this regular expression")


def sampling_params(args: argparse.Namespace, *, n: int = 1, logprobs: int | None = None) -> SamplingParams:
    """The frozen parameters of one command. RequestError for values out of range."""
    from vtk.llm_serving.sampling.params import SamplingParams

    return SamplingParams(
        n=n,
        logprobs=logprobs,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        seed=args.seed,
        stop=tuple(args.stop),
        structured_outputs=_structured(args),
    )


def _structured(args: argparse.Namespace) -> StructuredOutputsParams | None:
    if args.json_schema is None and args.regex is None:
        return None
    if args.json_schema is not None and args.regex is not None:
        raise UsageError("--json-schema and --regex exclude each other.")
    require_structured()
    # Here already: importing it takes seconds, which are none of the first answer's.
    import vtk.llm_serving.sampling.grammar  # noqa: F401
    from vtk.llm_serving.sampling.structured import StructuredOutputsParams

    if args.regex is not None:
        return StructuredOutputsParams(regex=args.regex)
    if str(args.json_schema).lstrip().startswith("{"):
        raise UsageError("--json-schema takes the name of a file that holds the schema, not the schema itself.")
    return StructuredOutputsParams(json=read_text(args.json_schema, MAX_SCHEMA_BYTES))


def read_text(path: Path, max_bytes: int) -> str:
    """A file of UTF-8 text. InputError for one that cannot be read or is larger than it may be."""
    try:
        with path.open("rb") as stream:  # a pipe or a device does not say how large it is
            data = stream.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise InputError(f"The file {path} is larger than {max_bytes} bytes.")
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"The file {path} cannot be read: {reason}.") from error
