"""The picture of a run shows what the recording holds."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.lanes import Lane, Recording, draw
from chairlift.bench.workload import from_file, synthetic
from chairlift.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"


def test_every_ride_is_drawn() -> None:
    """Two lanes, one with a prompt bar and a decode bar, one that waited: all there, in valid XML."""
    lanes = [
        Lane(0.0, [(0.0, 0.1, 50, 0), (0.1, 0.2, 0, 1), (0.2, 0.3, 0, 1)]),
        Lane(0.05, [(0.2, 0.3, 20, 0)]),
    ]
    recording = Recording(
        lanes, [(0.0, 0.1, 50, 0), (0.1, 0.2, 0, 1), (0.2, 0.3, 20, 1)], 64, "two & a half <lanes>"
    )
    root = ElementTree.fromstring(draw(recording))
    rects = root.findall(f".//{SVG}rect")
    colors = [r.get("fill") for r in rects if float(r.get("height") or 0) == 10]
    assert sorted(colors) == sorted(["#e8a33d", "#3d7ea6", "#e8a33d"])
    assert any("two & a half <lanes>" in (t.text or "") for t in root.findall(f".//{SVG}text"))


def test_the_synthetic_mix_is_deterministic_and_in_the_vocabulary() -> None:
    """The same seed gives the same requests, so pictures and measurements can be repeated."""
    first, second = synthetic(10, vocab_size=500), synthetic(10, vocab_size=500)
    assert first == second
    assert all(0 <= token < 500 for item in first for token in item.prompt_token_ids)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(first))


@pytest.mark.parametrize(
    "requests",
    [
        [],
        ["hello"],
        "hello",
        [{"max_tokens": 3}],
        [{"prompt_token_ids": [], "max_tokens": 3}],
        [{"prompt_token_ids": ["5"], "max_tokens": 3}],
        [{"prompt_token_ids": [1.5], "max_tokens": 3}],
        [{"prompt_token_ids": [5], "max_tokens": 0}],
        [{"prompt_token_ids": [5], "max_tokens": True}],
        [{"prompt_token_ids": [5], "max_tokens": 3, "arrival_s": -1}],
        [{"prompt_token_ids": [5], "max_tokens": 3, "arrival_s": math.nan}],
    ],
)
def test_a_file_that_is_no_workload_is_refused(requests: Any, tmp_path: Path) -> None:
    """Nothing in a file is guessed: a wrong request is an error that names file and flag."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps({"requests": requests}))
    with pytest.raises(ConfigError, match=r"--workload .*not a workload file"):
        from_file(str(path))
