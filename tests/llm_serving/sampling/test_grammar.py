"""Outputs that follow a grammar, drawn from noise at temperature 1.5, and grammars that are refused."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_engine import PROMPT, VOCAB, FakeTokenizer, greedy, make, request

from vtk.errors import RequestError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.results import Collector, Completion
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import new_state, sample
from vtk.llm_serving.sampling.structured import StructuredOutputsParams

grammar = pytest.importorskip("vtk.llm_serving.sampling.grammar", reason="needs xgrammar")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 3, "maximum": 150},
        "kind": {"enum": ["cat", "dog", None, 7]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-c]{2}$"}]},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        {"name", "age", "kind", "tags"} <= value.keys() <= PERSON["properties"].keys()
        and isinstance(value["name"], str)
        and len(value["name"]) <= 5
        and type(value["age"]) is int
        and 3 <= value["age"] <= 150
        and value["kind"] in ["cat", "dog", None, 7]
        and 1 <= len(value["tags"]) <= 3
        and all(type(tag) is bool for tag in value["tags"])
        and (value.get("more") is None or re.fullmatch("[a-c]{2}", value["more"]) is not None)
    )


EBNF = r"""
root ::= sum "=" number
sum ::= number ("+" number){1,3}
number ::= [1-9] [0-9]{0,2}
"""
KINDS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "schema": ({"json": PERSON}, is_person),
    "schema text": ({"json": json.dumps(PERSON)}, is_person),
    "regex": ({"regex": r"[a-f]{3}-(x|yy)\d{1,4}"}, re.compile(r"[a-f]{3}-(x|yy)\d{1,4}").fullmatch),
    "choice": ({"choice": ('say "hi"', "no\\", "maybe")}, {'say "hi"', "no\\", "maybe"}.__contains__),
    "ebnf": ({"grammar": EBNF}, re.compile(r"[1-9]\d{0,2}(\+[1-9]\d{0,2}){1,3}=[1-9]\d{0,2}").fullmatch),
}


@pytest.fixture(scope="module")
def compiler() -> Any:
    return grammar.GrammarCompiler(FakeTokenizer(), VOCAB)


def generate(compiler: Any, spec: dict[str, Any], *, num_blocks: int, **params: Any) -> Iterator[Completion]:
    """Ten requests with three outputs each, in a pool that holds few of them at once."""
    engine = make(num_blocks, max_model_len=400, max_num_seqs=16, max_num_batched_tokens=40)
    collectors = {}
    for seed in range(10):
        settings = {"temperature": 1.5, "n": 3, "seed": seed, "max_tokens": 380} | params
        sampling = SamplingParams(**settings, structured_outputs=StructuredOutputsParams(**spec))
        generation = Generation(f"r{seed}", PROMPT[: 1 + seed], sampling, mask=compiler.compile(sampling))
        collectors[generation.request_id] = Collector(generation, None)
        engine.add(generation)
    while engine.has_work:
        for delta in engine.step():
            collectors[delta.request_id].add(delta)
    if num_blocks < 200:
        assert engine.scheduler.num_preemptions > 0
    for collector in collectors.values():
        yield from collector.result().outputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_output_follows_its_grammar(compiler: Any, kind: str, temperature: float) -> None:
    spec, matches = KINDS[kind]
    outputs = list(generate(compiler, spec, num_blocks=1000, temperature=temperature))
    assert len(outputs) == 30
    for output in outputs:
        assert output.finish_reason == "stop", output
        assert matches(output.text), output.text
    if temperature:
        assert len({output.text for output in outputs}) > 2


def test_preemption_and_penalties_change_nothing_of_that(compiler: Any) -> None:
    params = {"logit_bias": {ord("}"): -100.0, ord('"'): -5.0}, "frequency_penalty": 2.0, "repetition_penalty": 1.3}
    for output in generate(compiler, {"json": PERSON}, num_blocks=110, **params):
        assert output.finish_reason == "stop"
        assert is_person(output.text)


def test_json_object_is_any_json_object(compiler: Any) -> None:
    ended = [o for o in generate(compiler, {"json_object": True}, num_blocks=1000) if o.finish_reason == "stop"]
    assert len(ended) >= 5
    assert all(isinstance(json.loads(output.text), dict) for output in ended)


def test_a_bias_cannot_overrule_the_grammar(compiler: Any) -> None:
    params = SamplingParams(
        logit_bias={ord("a"): -np.inf}, structured_outputs=StructuredOutputsParams(regex="a"), temperature=1.5
    )
    state = new_state(params, PROMPT, [], mask=compiler.compile(params)())
    row = np.zeros((1, VOCAB), np.float32)
    assert [sample(row, [state])[0].token for _ in range(2)] == [ord("a"), 0]


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"grammar": 'root ::= "a" b\nb ::= b'}, "no token follows in the grammar"),
        ({"regex": "((a{1,100}){1,100}){1,100}b"}, "the grammar is too ambiguous"),
    ],
)
def test_a_grammar_that_gets_lost_costs_its_own_output_alone(
    compiler: Any, spec: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's thread serves everybody: an output is given up before it takes long, and says so."""
    monkeypatch.setattr(grammar, "MAX_SECONDS", 0.005)
    engine = make(200, max_model_len=400)
    structured = StructuredOutputsParams(**spec)
    lost = SamplingParams(logit_bias={ord("b"): -100.0}, seed=0, max_tokens=300, structured_outputs=structured)
    engine.add(Generation("lost", PROMPT, lost, mask=compiler.compile(lost)))
    engine.add(request("other"))
    last = {}
    text = ""
    while engine.has_work:
        for delta in engine.step():
            last[delta.request_id] = delta
            text += delta.text if delta.request_id == "other" else ""
    assert text == greedy(PROMPT, 12)
    assert (last["lost"].finish_reason, last["lost"].stop_reason) == (FinishReason.ABORT, why)
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_blocks


def test_special_tokens_are_never_part_of_an_output() -> None:
    class Named(FakeTokenizer):
        special_ids = frozenset({0, 5})

        def token_bytes(self, token: int) -> bytes:
            return b"abc" if token == 5 else super().token_bytes(token)

    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-z]+"))
    row = np.zeros(VOCAB, np.float32)
    grammar.GrammarCompiler(Named(), VOCAB).compile(params)().apply(row)
    assert np.flatnonzero(np.isfinite(row)).tolist() == list(range(ord("a"), ord("z") + 1))


REFUSED_SCHEMAS = [
    ("{", "not valid JSON"),
    (False, "must be an object"),
    ({"type": "strin"}, "type 'strin' is unknown"),
    ({"type": "array", "uniqueItems": True}, "'uniqueItems' for type 'array'"),
    ({"minimum": 3}, "'minimum' without a 'type'"),
    ({"type": "string", "pattern": "a", "minLength": 2}, "cannot be combined"),
    ({"type": "string", "pattern": "(?=a)"}, "Look-around"),
    ({"type": "string", "pattern": "("}, "no regular expression"),
    ({"type": "string", "format": "color"}, "format 'color'"),
    ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a: 'not'"),
    ({"type": "object", "required": ["z"]}, "'z', which 'properties' does not have"),
    ({"type": "object", "required": 5}, "wrong kind"),
    ({"type": "string", "enum": ["a", 1]}, "not of its 'type'"),
    ({"$ref": "http://example.com/x"}, r"'\$ref' must be"),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}, "minLength": 3}, r"'\$ref' stands beside 'minLength'"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may overlap"),
    ({"allOf": [{"type": "integer"}, {"type": "number"}]}, "several members"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "cannot be used"),
    ({"$ref": "#/$defs/none"}, "cannot be used"),
    ({"type": "integer", "minimum": 10**400}, "cannot be used"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED_SCHEMAS)
def test_a_schema_that_would_not_be_enforced_is_refused(compiler: Any, schema: Any, message: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(RequestError, match=message):
        compiler.compile(SamplingParams(structured_outputs=StructuredOutputsParams(json=text)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"regex": "(a"}, "no regular expression"),
        ({"regex": r"(a)\1"}, "references"),
        ({"grammar": "root ::= ("}, "EBNF parser error"),
        ({"grammar": 'root ::= "a" b'}, 'Rule "b" is not defined'),
        ({"grammar": 'start ::= "a"'}, "root"),
        ({"grammar": "root ::= é\x00"}, "not what xgrammar can parse"),
    ],
)
def test_a_wrong_grammar_is_refused(compiler: Any, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        compiler.compile(SamplingParams(structured_outputs=StructuredOutputsParams(**spec)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "got none"),
        ({"regex": "a", "json_object": True}, "got regex, json_object"),
        ({"choice": ()}, "one or more strings"),
        ({"choice": ("a", "")}, "none empty"),
        ({"regex": "a" * 200_000}, "200000 characters"),
        ({"json": {"a": {1, 2}}}, "not a JSON value"),
    ],
)
def test_exactly_one_usable_specification_is_taken(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        StructuredOutputsParams(**spec)


@pytest.mark.parametrize("params", [{"ignore_eos": True}, {"min_tokens": 2}])
def test_parameters_that_contradict_a_grammar_are_refused(compiler: Any, params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="grammar says where the output ends"):
        compiler.compile(SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), **params))
