"""The default model against recorded results of Hugging Face transformers in f32 (tools/record_goldens.py)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.interface import Ops
from model.default_model_path import default_model_path
from model.harness import Harness

GOLDENS = Path(__file__).parents[1] / "data/goldens/smollm2-135m-instruct-q4_1.npz"
TOLERANCE = 0.02
CHUNK = 256

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    with np.load(GOLDENS) as file:
        arrays = dict(file)
    starts = np.cumsum(arrays["prompt_lens"])[:-1]
    return {**arrays, "prompts": [part.tolist() for part in np.split(arrays["prompt_ids"], starts)]}


@pytest.fixture
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    if request.param == "cpu":
        if importlib.util.find_spec("chairlift.ops._native") is None:
            pytest.skip("the native module is not built")
        from chairlift.ops.cpu import CpuOps

        backend: Ops = CpuOps(2, CHUNK, 32)
    else:
        from chairlift.ops.reference import ReferenceOps

        backend = ReferenceOps(CHUNK, 32)
    yield backend
    backend.close()


def check(goldens: dict[str, Any], ops: Ops, which: list[int], num_tokens: int) -> None:
    """Prompts `which`, one after the other; then all together, `num_tokens` steps that follow the recorded tokens."""
    model = load_model(open_model_files(default_model_path()), ops)
    prompts = [goldens["prompts"][i] for i in which]
    harness = Harness(model, ops, [len(prompt) + num_tokens for prompt in prompts])
    logits = np.stack([harness.prefill(row, prompt, CHUNK) for row, prompt in enumerate(prompts)])
    for row, i in enumerate(which):
        top = np.abs(logits[row, goldens["top_ids"][i]] - goldens["top_logits"][i]).max()
        sampled = np.abs(logits[row, goldens["sampled_ids"]] - goldens["sampled_logits"][i]).max()
        assert max(top, sampled) <= TOLERANCE, f"prompt {i} of {len(prompts[row])} tokens"
    for step in range(num_tokens):
        tokens = goldens["greedy_ids"][which, step]
        clear = goldens["greedy_leads"][which, step] > TOLERANCE
        assert np.array_equal(logits.argmax(axis=1)[clear], tokens[clear]), f"greedy token {step}"
        best = logits[np.arange(len(which)), tokens]
        assert np.abs(best - goldens["greedy_logits"][which, step]).max() <= TOLERANCE, f"greedy token {step}"
        logits = harness.step({row: [int(token)] for row, token in enumerate(tokens)})


def test_the_goldens_cover_what_they_should(goldens: dict[str, Any]) -> None:
    """20 prompts of 1 to 1500 tokens, 64 greedy tokens each, few of them too close to call."""
    lengths = goldens["prompt_lens"].tolist()
    assert (len(lengths), min(lengths), max(lengths)) == (20, 1, 1500)
    assert goldens["greedy_ids"].shape == (20, 64)
    assert (goldens["greedy_leads"] > TOLERANCE).mean() > 0.95


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ops", ["cpu"], indirect=True)
def test_native_kernels_agree_with_transformers(goldens: dict[str, Any], ops: Ops) -> None:
    """All prompts: logits within 0.02 of transformers with an f32 cache, and the same 64 greedy tokens."""
    check(goldens, ops, list(range(20)), 64)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ops", ["reference"], indirect=True)
def test_the_reference_agrees_with_transformers(goldens: dict[str, Any], ops: Ops) -> None:
    """The oracle of the kernel tests is itself right on the real model: short prompts, a few tokens."""
    check(goldens, ops, [i for i, n in enumerate(goldens["prompt_lens"]) if n <= 17], 4)
