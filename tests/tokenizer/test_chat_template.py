from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from chairlift.errors import InvalidParameterError, ModelLoadError
from chairlift.tokenizer.chat_template import ChatTemplate

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}"
    "{% endfor %}"
)
USER = [{"role": "user", "content": "Hi"}]


def render(source: str, **extra: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(USER, **extra)


def test_the_default_models_template() -> None:
    """A default system message is added, and the assistant's turn is opened when asked for."""
    template = ChatTemplate(SMOLLM)
    system = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    )
    assert template.render(USER) == f"{system}<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(USER, add_generation_prompt=False) == f"{system}<|im_start|>user\nHi<|im_end|>\n"


def test_llama2_template_and_its_refusal() -> None:
    """bos and eos are at hand, and raise_exception becomes the client's 400 with the template's words."""
    template = ChatTemplate(LLAMA2, "<s>", "</s>")
    messages = [{"role": "system", "content": "S"}, *USER, {"role": "assistant", "content": " yo "}]
    assert template.render(messages) == "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST] yo </s>"
    with pytest.raises(InvalidParameterError, match="roles must alternate"):
        template.render([*USER, *USER])


def test_user_text_is_never_rendered() -> None:
    """B73: braces in a message are text."""
    text = "{{ 7*7 }}{% for x in range(9) %}x{% endfor %}"
    assert text in ChatTemplate(SMOLLM).render([{"role": "user", "content": text}])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'é': [1, 2]} | tojson }}", '{"é": [1, 2]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{% generation %}a{{ messages[0].content }}{% endgeneration %}b", "aHib"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f('b') }}", "<a><b>"),
        ("{% for a, b in {'k': 'v'}.items() %}{{ a }}={{ b }}{% endfor %}", "k=v"),
        (
            "{% for x in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/2,2/2",
        ),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ ' x ' | trim | upper | replace('X', 'yy') }}", "yy"),
        ("{{ 'a-b'.split('-')[-1] + 'abc'[1:] + 'ab' * 2 }}", "bbcabab"),
        ("{{ '%s-%s' | format(1, 'b') }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 10 }}", "1-b331024"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}", "a1"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
        ("{% if 'a' in messages[0] or tools is none %}yes{% endif %}", "yes"),
        ("{{ bos_token }}{{ undefined_thing }}{{ messages[0].content is defined }}", "<s>True"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
    ],
)
def test_what_templates_use_works(source: str, expected: str) -> None:
    """Tags, filters and functions that chat templates use give what Hugging Face's environment gives."""
    assert render(source) == expected


def test_null_fields_are_absent() -> None:
    """A key whose value is null looks absent to the template, as in Hugging Face."""
    template = ChatTemplate("{% for m in messages %}{{ 'tool_calls' in m }}{% endfor %}")
    assert template.render([{"role": "user", "content": "", "tool_calls": None}]) == "False"


HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "string times number": "{{ 'x' * 10000000000 }}",
    "list times number": "{{ ([0] * 10000000000) | length }}",
    "empty list times number": "{{ ([[]] * 10000000000) | length }}",
    "doubling by +": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by lists": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    "{{ n.s }}",
    "doubling by blocks": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set x %}{{ n.s }}{{ n.s }}"
    "{% endset %}{% set n.s = x %}{% endfor %}",
    "doubling by macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(60) }}",
    "doubling by recursion": "{% set t = [1] %}{% for x in [t] recursive %}{{ loop([t, t]) }}{% endfor %}",
    "nested namespaces": "{% set a = namespace(x=1) %}{% set b = namespace(x=a, y=a) %}{{ b }}",
    "replace": "{% set s = 'a' * 1000000 %}{{ s.replace('a', s) | length }}",
    "replace filter": "{% set s = 'a' * 1000000 %}{{ s | replace('a', s) | length }}",
    "join": "{{ ('a' * 1000000).join(range(1000) | list) | length }}",
    "join filter": "{{ range(10000) | join('a' * 100000) }}",
    "join of a generator": "{{ 'ab'.join(['x' * 100] | map('upper')) }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "squares": "{% set n = namespace(x=7) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "padding": "{{ 'x'.ljust(10000000000) }}",
    "center": "{{ 'x' | center(10000000000) }}",
    "str.format": "{{ '{:>10000000000}'.format('x') }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10000000000, 1) }}",
    "format filter": "{{ '%10000000000d' | format(1) }}",
    "indent": "{{ 'x' | indent(10000000000, first=true) }}",
    "tojson indent": "{{ [1] | tojson(indent=10000000000) }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "big comparisons": "{% set a = range(99999) | list %}{% set b = range(99999) | list %}"
    "{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}",
    "big membership": "{% set a = range(99999) | list %}{% for i in range(99999) %}{{ -1 in a }}{% endfor %}",
    "big slices": "{% set a = range(99999) | list %}{% for i in range(99999) %}{% set b = a[1:] %}{% endfor %}",
    "big sums": "{% set a = range(99999) | list %}{% for i in range(99999) %}{{ a | sum }}{% endfor %}",
    "big counts": "{% set a = 'x' * 1000000 %}{% for i in range(99999) %}{{ a.count('y') }}{% endfor %}",
    "long output": "{% set a = 'x' * 1000000 %}{% for i in range(99999) %}{{ a }}{% endfor %}",
    "to_bytes": "{{ (5).to_bytes(10000000000) }}",
    "budget reset": "{{ self._environment.start() }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "attr filter": "{{ ('' | attr('__class__')).mro() }}",
    "namespace dunder": "{% set n = namespace(__class__=1) %}{{ n }}",
    "mutation": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_fail_quickly(name: str) -> None:
    """B73: a template that burns CPU or memory, or reaches for Python, is an error within seconds."""
    start = time.thread_time()
    with pytest.raises((InvalidParameterError, ModelLoadError)):
        render(HOSTILE[name])
    assert time.thread_time() - start < 5  # seconds of one core; about one


def test_no_file_appears(tmp_path: Path) -> None:
    """B73: the classic walk to `os` ends in a refusal, and nothing was run."""
    target = tmp_path / "pwned"
    walk = (
        "{% for c in ''.__class__.__base__.__subclasses__() %}{% if 'warning' in c.__name__ %}"
        f"{{{{ c()._module.__builtins__['open']({json.dumps(str(target))}, 'w') }}}}{{% endif %}}{{% endfor %}}"
    )
    with pytest.raises(InvalidParameterError):
        render(walk)
    assert not target.exists()


def test_budgets_are_per_rendering() -> None:
    """A rendering that used its budget up leaves a full one to the next."""
    template = ChatTemplate("{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}ok")
    for _ in range(3):
        with pytest.raises(InvalidParameterError, match="more than 500000 steps"):
            template.render(USER, n=9999)
        assert template.render(USER, n=100) == "ok"


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ x", "{{ x | nothing }}", "{% if x %}", "x" * 600_000, "{{" + "(" * 5000]
)
def test_wrong_templates_fail_at_load(source: str) -> None:
    """A template that does not compile is found when the model loads, not when a client comes."""
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate(source)
