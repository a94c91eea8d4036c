"""What the same-bits tests share: prompts, one way to run them, and what must be equal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from chairlift import LLM, SamplingParams
from chairlift.engine.types import RequestOutput

Answer = tuple[
    tuple[int, ...], tuple[tuple[tuple[int, float], ...], ...]
]  # token ids, (id, logprob) per position

SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.8, "seed": 12, "top_p": 0.9, "top_k": 40},
    {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"temperature": 1.3, "seed": 13, "min_p": 0.05, "logit_bias": {400: 3.0, 500: -100.0}},
)


def make_prompts(
    number: int, longest: int, vocab_size: int, more: Sequence[int] = (), seed: int = 3
) -> list[list[int]]:
    """`number` prompts of 1 to `longest` random plain tokens, every third sharing its first 40; then lengths `more`."""
    rng = random.Random(seed)
    shared = [rng.randrange(17, vocab_size) for _ in range(40)]
    prompts = []
    for i in range(number):
        own = [rng.randrange(17, vocab_size) for _ in range(1 + (longest - 1) * i // max(1, number - 1))]
        prompts.append((shared + own)[: max(len(own), 41)] if i % 3 == 0 else own)
    return prompts + [[rng.randrange(17, vocab_size) for _ in range(length)] for length in more]


def make_params(number: int, max_tokens: int) -> list[SamplingParams]:
    """One set of parameters per prompt, cycling through every kind of sampling, logprobs on."""
    return [
        SamplingParams(max_tokens=max_tokens, ignore_eos=True, logprobs=3, **SAMPLING[i % len(SAMPLING)])
        for i in range(number)
    ]


def answers(llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Answer]:
    """Offer everything at once; token ids and every logprob of each answer, in the caller's order."""
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [bits(output) for output in outputs]


def alone(llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> list[Answer]:
    """The reference: one request at a time."""
    return [answers(llm, [prompt], [each])[0] for prompt, each in zip(prompts, params, strict=True)]


def bits(output: RequestOutput) -> Answer:
    """Everything that must be equal, exactly."""
    choice = output.outputs[0]
    logprobs = tuple(
        tuple((token_id, entry.logprob) for token_id, entry in sorted(position.items()))
        for position in choice.logprobs or []
    )
    if len(logprobs) != len(choice.token_ids):
        raise ValueError(f"{len(logprobs)} logprobs for {len(choice.token_ids)} tokens")
    return tuple(choice.token_ids), logprobs
