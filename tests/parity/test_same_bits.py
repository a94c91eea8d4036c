"""Promise P2: the same tokens and logprobs, compared with `==`, whatever the traffic and the kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift import LLM, SamplingParams
from ops.backends import available_isas
from parity.runs import Answer, alone, answers, make_params, make_prompts

BIG: dict[str, Any] = {"num_kv_blocks": 2048, "max_model_len": 1024, "enable_prefix_caching": False}


class Case:
    """One model, its prompts, and the reference: each request alone, big pool, no cache, one thread.

    `numerics` are flags that choose another contract (other bits): the promise holds within each.
    """

    def __init__(
        self,
        model: Path,
        numerics: dict[str, Any],
        number: int,
        longest: int,
        more: list[int],
        max_tokens: int,
    ) -> None:
        self.model = str(model)
        self.numerics = numerics
        self.flags = {**BIG, **numerics}
        with LLM(self.model, threads=1, **self.flags) as llm:
            self.prompts = make_prompts(number, longest, llm.info.vocab_size, more)
            self.params: list[SamplingParams] = make_params(len(self.prompts), max_tokens)
            self.reference: list[Answer] = alone(llm, self.prompts, self.params)

    def run(self, **flags: Any) -> list[Answer]:
        with LLM(self.model, **{**self.flags, **flags}) as llm:
            return answers(llm, self.prompts, self.params)


MODELS = [
    ("tiny", {}),
    ("tiny", {"compute_dtype": "int8"}),
    ("tiny", {"kv_cache_dtype": "int8"}),
    pytest.param(("default", {}), marks=pytest.mark.model),
    pytest.param(("default", {"compute_dtype": "int8"}), marks=pytest.mark.model),
]


@pytest.fixture(
    scope="module", params=MODELS, ids=["tiny", "tiny int8", "tiny int8 KV", "default", "default int8"]
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    name, numerics = request.param
    if name == "tiny":
        # 256 is where attention starts another split
        yield Case(request.getfixturevalue("tiny_model"), numerics, 30, 200, [240, 255, 256, 257, 600], 24)
    else:
        yield Case(request.getfixturevalue("default_model"), numerics, 10, 70, [250, 520], 28)


def test_beside_others(case: Case) -> None:
    """All at once equals each alone."""
    assert case.run() == case.reference


def test_in_reverse_order(case: Case) -> None:
    """The order of arrival changes nothing."""
    with LLM(case.model, **case.flags) as llm:
        assert answers(llm, case.prompts[::-1], case.params[::-1])[::-1] == case.reference


@pytest.mark.parametrize("budget", [16, 64, 2048])
def test_whatever_the_token_budget(case: Case, budget: int) -> None:
    """Chunking a prompt differently changes nothing."""
    assert case.run(max_num_batched_tokens=budget) == case.reference


def test_whatever_the_block_size(case: Case) -> None:
    """Blocks of 32 tokens give the bits of blocks of 16."""
    assert case.run(block_size=32, num_kv_blocks=1024) == case.reference


def test_with_one_running_at_a_time(case: Case) -> None:
    """A queue in front of one slot changes nothing."""
    assert case.run(max_num_seqs=1) == case.reference


def test_cold_and_warm_prefix_cache(case: Case) -> None:
    """Blocks written by an earlier request give the bits of computing them again."""
    with LLM(case.model, **{**case.flags, "enable_prefix_caching": True}) as llm:
        assert answers(llm, case.prompts, case.params) == case.reference
        outputs = llm.generate([{"prompt_token_ids": p} for p in case.prompts], case.params, use_tqdm=False)
        assert sum(output.num_cached_tokens for output in outputs) > 0
        assert answers(llm, case.prompts, case.params) == case.reference


def test_with_preemption(case: Case) -> None:
    """A pool too small for everybody forces recomputation; the bits stay."""
    short = [i for i, prompt in enumerate(case.prompts) if len(prompt) <= 200]
    prompts, params = [case.prompts[i] for i in short], [case.params[i] for i in short]
    longest = max(map(len, prompts)) + (params[0].max_tokens or 0)
    pool: dict[str, Any] = {"num_kv_blocks": longest // 16 + 2, "max_model_len": longest, "max_num_seqs": 32}
    with LLM(case.model, **pool, **case.numerics) as llm:
        assert answers(llm, prompts, params) == [case.reference[i] for i in short]
        assert llm.stats.num_preemptions_total > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_whatever_the_number_of_threads(case: Case, threads: int) -> None:
    """Threads share out work, never a sum."""
    assert case.run(threads=threads) == case.reference


def test_generic_kernels_equal_the_fast_ones(case: Case) -> None:
    """The readable C++ and the vectorised one are the same function, bit for bit."""
    all_of_them = "tiny" in case.model
    few = slice(0, None) if all_of_them else slice(1, 3)  # scalar code: some hundred times slower
    with LLM(case.model, isa="generic", **case.flags) as llm:
        assert answers(llm, case.prompts[few], case.params[few]) == case.reference[few]


@pytest.mark.parametrize("isa", available_isas())
def test_every_instruction_set_equals_the_others(case: Case, isa: str) -> None:
    """A wider vector changes no bit, for each instruction set that this processor has."""
    assert case.run(isa=isa) == case.reference


def test_f32_cache_too(case: Case) -> None:
    """The promise holds within each KV dtype: f32 batched and chunked equals f32 alone."""
    few = slice(0, 6)
    flags = {**case.flags, "kv_cache_dtype": "f32"}
    with LLM(case.model, **flags) as llm:
        reference = alone(llm, case.prompts[few], case.params[few])
    with LLM(case.model, **flags, max_num_batched_tokens=32) as llm:
        assert answers(llm, case.prompts[few], case.params[few]) == reference


def test_the_reference_is_not_trivial(case: Case) -> None:
    """The answers differ from each other, so equality above means something."""
    assert len({answer[0] for answer in case.reference}) > len(case.reference) // 2
