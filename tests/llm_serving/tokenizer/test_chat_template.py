"""Templates render as in transformers, and a template or message that goes wrong is one clear refusal."""

import datetime
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from vtk.errors import CheckpointError, RequestError
from vtk.llm_serving.tokenizer.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Grüß <b>Gott</b> & 'you'"},
    {"role": "assistant", "content": "Hi"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"z": "°C", "a": [1, None, True]}}}]
TEMPLATES = {
    "chatml": """
{% for m in messages %}
    {% if loop.first and m.role != 'system' %}
none
    {% endif %}
<|{{ m['role'] }}|>{{ m.content | trim }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}
""",
    "tools": "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{{ t | tojson(indent=2) }}{% endfor %}{% endif %}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "training": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}!{% endfor %}",
    "state": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "special": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ documents }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_text_is_that_of_transformers(name: str, add_generation_prompt: bool) -> None:
    rendered, _ = render_jinja_template(
        conversations=[MESSAGES], tools=TOOLS, chat_template=TEMPLATES[name], bos_token="<s>",
        add_generation_prompt=add_generation_prompt,
    )  # fmt: skip
    template = ChatTemplate(TEMPLATES[name], {"bos_token": "<s>"})
    assert template.render(MESSAGES, tools=TOOLS, add_generation_prompt=add_generation_prompt) == rendered[0]


def test_today() -> None:
    today = datetime.datetime.now().astimezone().strftime("%Y")
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render([]) == today


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "refuses these messages: Roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses"),
        ("{{ messages[7].content.x }}", "refuses"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ messages | nothing }}", "No filter named 'nothing'"),
        ("{% include 'file' %}", "refuses"),
        ("{{ raise_exception('') }}", "it gives no reason"),
        ("{{ cycler() }}", "at least one item"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "cannot be compiled: maximum recursion"),
        ("{% for m in messages %}" * 25 + "x" + "{% endfor %}" * 25, "cannot be compiled: too many statically nested"),
        ("{% if messages %}" * 120 + "x" + "{% endif %}" * 120, "cannot be compiled: too many levels"),
        ("{% break %}", "cannot be compiled: 'break' outside loop"),
        ("{{ (10 ** 5000) | string }}", "refuses these messages: Exceeds the limit"),
    ],
)
def test_what_goes_wrong_is_one_line(source: str, message: str) -> None:
    with pytest.raises((RequestError, CheckpointError), match=message) as error:
        ChatTemplate(source, {}).render(MESSAGES)
    assert "\n" not in str(error.value)


def test_messages_are_not_changed() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError, match="unsafe"):
        ChatTemplate("{{ messages[0].update({'role': 'y'}) }}", {}).render(messages)
    assert messages == [{"role": "user", "content": "x"}]


ENDLESS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in [50] recursive %}{{ loop([i - 1] * 2) if i }}{% endfor %}",
    "{% macro f(n) %}{{ caller(n) }}{% endmacro %}"
    "{% macro g(n) %}{% if n %}{% call(m) f(n) %}{{ g(m - 1) }}{{ g(m - 1) }}{% endcall %}{% endif %}{% endmacro %}"
    "{{ g(25) }}",
    "{% set ns = namespace(depth=0) %}{% block b %}{% set ns.depth = ns.depth + 1 %}"
    "{% if ns.depth < 50 %}{{ self.b() }}{{ self.b() }}{% endif %}{% set ns.depth = ns.depth - 1 %}{% endblock %}",
    "{% set x = range(100000) | list %}"
    "{% for i in range(100000) %}{% set y = x | sort(reverse=true) | join(',') %}{% endfor %}",
]
HUGE = [
    "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
    "{% macro f() %}{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endmacro %}{% set x = f() %}",
    "{% set x %}{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
    "{{ 10 ** (10 ** 10) }}",
    "{% set n = 10 %}{{ n ** (n ** n) % 7 }}",
    "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ 'x' * 10 ** 11 }}",
    "{{ [0] * 10 ** 11 }}",
    "{{ (10 ** 11 * (0,)) | length }}",
    "{% set ns = namespace(x='xy') %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xy') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x | replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(x='x') %}{% for i in range(40) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}",
    "{{ 'x'.ljust(10 ** 11) }}",
    "{{ '%99999999999d' % 3 }}",
    "{{ '%*d' % (10 ** 11, 3) }}",
    "{{ '%99999999999d' | format(3) }}",
    "{{ 'on 20260101: %(a)-99999999999s' % {'a': 3} }}",
    "{{ '%.99999999999f' % 3 }}",
    "{{ '{:99999999999}'.format(3) }}",
    "{{ '{:{}}'.format(3, 10 ** 11) }}",
    "{{ '{x:99999999999}'.format_map({'x': 3}) }}",
    "{{ 'x' | center(10 ** 11) }}",
    "{{ 'x' | center(width=10 ** 11) }}",
    "{{ 'x' | center(99999999999) }}",
    "{{ [1] | tojson(indent=10 ** 11) }}",
    "{{ 0.5 | round(10 ** 11, 'ceil') }}",
    "{% set x = 'x' * 10 ** 6 %}{{ x | replace('x', x) | length }}",
    "{% set x = 'x' * 10 ** 6 %}{{ x.replace('x', x) | length }}",
    "{% set x = 'x' * 10 ** 6 %}{{ ([x] * 1000) | join }}",
    "{% set x = 'x' * 10 ** 6 %}{{ ([none] * 1000) | map('default', x, true) | join }}",
    "{% set x = 'x' * 10 ** 6 %}{{ ''.join([x] * 1000) }}",
    "{% set x = 'x' * 10 ** 6 %}{{ '%s' % ([x] * 1000,) }}",
    "{{ 'x'.expandtabs(tabsize=10 ** 11) }}",
    *(
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}"
        "{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b + ns.b] %}{% endfor %}" + used
        for used in (
            "{{ ns.a }}",
            "{{ ns.b }}",
            "{{ ns.a | tojson }}",
            "{{ ns.a | string }}",
            "{{ ns.a | upper }}",
            "{{ 'x' ~ ns.a }}",
            "{{ '%s' % ns.a }}",
            "{{ '{}'.format(ns.a) }}",
            "{{ ns.a | join }}",
            "{{ ns.a == ns.b }}",
            "{{ ns.a in [ns.b, ns.b] }}",
            "{{ [ns.a] | select('eq', ns.b) | list }}",
            "{{ [ns.a, ns.b] | sort }}",
            "{{ [ns.a].index(ns.b) }}",
        )
    ),
]


@pytest.mark.parametrize("source", ENDLESS)
def test_what_would_go_on_for_ever_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vtk.llm_serving.tokenizer.bounded_jinja.MAX_SECONDS", 0.05)
    template = ChatTemplate(source, {})
    with pytest.raises(RequestError, match=r"takes too much: it takes more than 0\.05 seconds"):
        template.render(MESSAGES)


@pytest.mark.parametrize("source", HUGE)
def test_what_would_fill_the_memory_is_refused(source: str) -> None:
    template = ChatTemplate(source, {})
    with pytest.raises(RequestError, match=r"takes too much: it (makes|pads)"):
        template.render(MESSAGES)


def test_work_of_real_templates_is_within_the_bounds() -> None:
    """A conversation as long as a context, seen from each of its messages, and every operation that is bounded."""
    messages = [{"role": "user", "content": "Grüße, Welt! " * 400}] * 500
    square = "{% for m in messages %}{% for n in messages if n.role == m.role %}{% endfor %}{{ m.content }}{% endfor %}"
    assert len(ChatTemplate(square, {}).render(messages)) == 500 * 13 * 400
    source = (
        "{{ 'ab' * 3 ~ '-' ~ ([1, 2] + [3]) }}|{{ 2 ** 10 }}|{{ 7 % 4 }}|{{ 'on 20260101: %5.1f (%%)' % 2 }}|"
        "{{ '%s' | format('x') }}|"
        "{{ '{:>4}'.format('x') }}|{{ '{a}'.format_map({'a': 1}) }}|{{ 'x' | center(5) }}|{{ 'x'.ljust(3) }}|"
        "{{ 1700000000 | string }}|{{ [1] | tojson(indent=1) }}|{{ 'a\nb' | indent(2) }}|{{ 2.345 | round(2) }}|"
        "{% for a in [1, [2]] recursive %}{{ a if a is number else loop(a) }}{{ loop.length }}{% endfor %}|"
        "{{ range(3) | batch(2, 0) | list }}|{{ messages[0].content.find('Welt', 100000) }}|{{ 'x' ~ none ~ 1 }}"
    )
    rendered, _ = render_jinja_template(conversations=[MESSAGES], chat_template=source)
    assert ChatTemplate(source, {}).render(MESSAGES, add_generation_prompt=False) == rendered[0]


def test_only_time_of_the_processor_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine, whose clock runs on meanwhile, refuses nothing."""
    clock, processor = count(step=1000.0), count(step=0.001)
    monkeypatch.setattr("vtk.llm_serving.tokenizer.bounded_jinja.time", SimpleNamespace(
        monotonic=lambda: next(clock), thread_time=lambda: next(processor)
    ))  # fmt: skip
    template = ChatTemplate("{% for i in range(messages | length) %}{% endfor %}done", {})
    assert template.render([{}] * 4000) == "done"
    with pytest.raises(RequestError, match="more than 5 seconds"):
        template.render([{}] * 6000)


def test_no_variable_takes_the_place_of_the_meter() -> None:
    from vtk.llm_serving.tokenizer.bounded_jinja import METER

    with pytest.raises(RequestError, match="not a variable"):
        ChatTemplate("{{ 1 }}", {}).render([], variables={METER: 1})
