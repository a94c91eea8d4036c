"""What the documentation page says is run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.serving import chat_prompt, serving

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "server.md"


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The first thing a user types works as it stands, but for the address."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (name,) = re.findall(r'model="([^"]+)"', code)
    with serving({chat_prompt(("user", "Say hi")): "Hi!"}, names=(name,)) as served:
        exec(code.replace("http://127.0.0.1:8000", served.url), {})
    assert capsys.readouterr().out == "Hi!\n"


def test_the_page_names_every_field() -> None:
    """A field that is supported is on the page."""
    from chairlift.server.protocol import ChatRequest, CompletionRequest, StreamOptions

    text = PAGE.read_text(encoding="utf-8")
    names = {*CompletionRequest.model_fields, *ChatRequest.model_fields, *StreamOptions.model_fields}
    assert {name for name in names if f"`{name}`" not in text} == {"continuous_usage_stats"}
