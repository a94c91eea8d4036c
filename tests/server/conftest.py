from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.serving import Served, chat_prompt, serving

HI = chat_prompt(("user", "Hi"))
EMOJI = chat_prompt(("user", "emoji"))


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server that answers "Hi" with "Hello there!" and anything else with endless letters."""
    scripts = {"Hi": "Hello there!", HI: "Hello there!", EMOJI: "a😀é世!", "emoji": "a😀é世!"}
    with serving(scripts, engine={"max_model_len": 512}) as served:
        yield served
        served.assert_idle()
