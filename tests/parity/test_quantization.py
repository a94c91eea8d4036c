"""Promise P2 for weights quantised while loading: an f32 folder under `--quantization`, through the whole engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chairlift import LLM
from model.tiny_models import TinyModel
from parity.runs import alone, answers, make_params, make_prompts
from tiny import VOCAB_SIZE

pytest.importorskip("chairlift.ops._native", reason="the native module is not built (make native)")

FLAGS: dict[str, Any] = {"num_kv_blocks": 256, "max_model_len": 256, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random f32 model, as people train them."""
    return TinyModel(vocab_size=VOCAB_SIZE, seed=7).write_folder(tmp_path_factory.mktemp("f32"))


def opened(folder: Path, tokenizer: Path, quantization: str | None, **flags: Any) -> LLM:
    return LLM(folder, tokenizer=tokenizer, quantization=quantization, **{**FLAGS, **flags})


@pytest.mark.parametrize("compute_dtype", ["f32", "int8"])
@pytest.mark.parametrize("quantization", ["q8", "q4"])
def test_batched_equals_alone(folder: Path, tiny_model: Path, quantization: str, compute_dtype: str) -> None:
    """Tokens and logprobs of each request alone, and of all of them side by side in small steps, are the same."""
    numerics = {"compute_dtype": compute_dtype}
    with opened(folder, tiny_model, quantization, threads=1, **numerics) as llm:
        prompts = make_prompts(12, 90, VOCAB_SIZE)
        params = make_params(len(prompts), 12)
        reference = alone(llm, prompts, params)
    for flags in ({"threads": 2}, {"max_num_batched_tokens": 32}, {"isa": "generic"}):
        with opened(folder, tiny_model, quantization, **numerics, **flags) as llm:
            assert answers(llm, prompts, params) == reference
    with opened(folder, tiny_model, None, **numerics) as llm:
        assert answers(llm, prompts, params) != reference


@pytest.mark.parametrize("quantization", ["q8", "q4"])
def test_the_reference_backend_agrees(folder: Path, tiny_model: Path, quantization: str) -> None:
    """numpy quantises to the same bytes, so greedy tokens are the same and logprobs nearly."""
    prompts = make_prompts(3, 30, VOCAB_SIZE)
    params = [each for each in make_params(1, 6) for _ in prompts]
    runs = []
    for backend in ("cpu", "reference"):
        with opened(folder, tiny_model, quantization, backend=backend, kv_cache_dtype="f32") as llm:
            assert llm.info.details["quantization"] == quantization
            runs.append(answers(llm, prompts, params))
    for (ids, logprobs), (their_ids, theirs) in zip(*runs, strict=True):
        assert ids == their_ids
        ours = [value for position in logprobs for _, value in position]
        assert np.allclose(ours, [value for position in theirs for _, value in position], atol=1e-4)
