"""Templates render as in transformers, and a template or message that goes wrong is one clear refusal."""

import datetime
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
        ("{{ '%999999999999999d' % 3 }}", "refuses these messages: MemoryError"),
        ("{{ cycler() }}", "at least one item"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "cannot be compiled: maximum recursion"),
        ("{% for m in messages %}" * 25 + "x" + "{% endfor %}" * 25, "cannot be compiled: too many statically nested"),
        ("{% if messages %}" * 120 + "x" + "{% endif %}" * 120, "cannot be compiled: too many levels"),
        ("{% break %}", "cannot be compiled: 'break' outside loop"),
        ("{{ (10 ** 5000) | string }}", "cannot be compiled: Exceeds the limit"),
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
