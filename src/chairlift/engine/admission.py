"""What a front end checks, before any work, about a request it is about to hand to the engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from operator import index

from chairlift.core.admission import AdmissionLimits
from chairlift.engine.outputs import OutputRules
from chairlift.engine.types import EngineInfo, EngineRequest
from chairlift.errors import InvalidParameterError
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.base import Tokenizer

MAX_STOP_CHARS = 4096  # per stop string; matching tables cost memory per character
_SEED_BITS = 64


class Admission:
    """Turns (prompt ids, parameters) into engine requests, one per choice, or refuses with the numbers.

    Args:
        seed: makes the seeds drawn for unseeded requests reproducible; None draws from the system.
    """

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer, seed: int | None) -> None:
        self._vocab_size = info.vocab_size
        self._limits = AdmissionLimits(info.max_model_len, info.num_kv_blocks, info.block_size)
        self._tokenizer = tokenizer
        self._random = random.SystemRandom() if seed is None else random.Random(seed)

    def admit(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, arrival_time: float
    ) -> tuple[OutputRules, list[EngineRequest]]:
        """Check everything, then fan out: `n` engine requests with one seed and branches 0 to n - 1.

        Raises:
            InvalidParameterError: a token id outside the vocabulary, an empty prompt, a stop string that can't be.
            ContextLengthError: the prompt, or prompt + max_tokens, is longer than max_model_len.
            PoolTooSmallError: the whole KV pool could not hold it.
        """
        # First the length, so that an id is looked at only in a prompt that could run.
        length = len(prompt_token_ids)
        max_tokens = self._limits.max_total_tokens(length, params.max_tokens) - length
        prompt = self._checked_prompt(prompt_token_ids)
        params.check_vocabulary(self._vocab_size)
        _check_stop(params)
        rules = OutputRules(params, self._tokenizer)
        seed = self._random.getrandbits(_SEED_BITS) if params.seed is None else params.seed % 2**_SEED_BITS
        eos = () if params.ignore_eos else tuple(self._tokenizer.eos_token_ids)
        requests = [
            EngineRequest(
                request_id=choice_id,
                prompt_token_ids=prompt,
                sampling_params=rules.engine_params(branch, max_tokens),
                seed=seed,
                branch=branch,
                eos_token_ids=eos,
                arrival_time=arrival_time,
            )
            for branch, choice_id in enumerate(choice_ids(request_id, params.n))
        ]
        return rules, requests

    def _checked_prompt(self, ids: Sequence[int]) -> list[int]:
        try:
            prompt = [int(index(token_id)) for token_id in ids]
        except TypeError as error:
            raise InvalidParameterError(
                f"the prompt has something that is no token id: {error}", param="prompt"
            ) from None
        low, high = min(prompt, default=0), max(prompt, default=0)
        if low < 0 or high >= self._vocab_size:
            raise InvalidParameterError(
                f"the prompt has token id {low if low < 0 else high}, outside the vocabulary "
                f"[0, {self._vocab_size})",
                param="prompt",
            )
        return prompt


def choice_ids(request_id: str, n: int) -> list[str]:
    """The engine's names for the choices of a request."""
    return [request_id] if n == 1 else [f"{request_id}#{branch}" for branch in range(n)]


def _check_stop(params: SamplingParams) -> None:
    if params.stop and not params.detokenize:
        raise InvalidParameterError("stop strings need detokenize=True; use stop_token_ids", param="stop")
    longest = max(map(len, params.stop), default=0)
    if longest > MAX_STOP_CHARS:
        raise InvalidParameterError(
            f"stop has a string of {longest} characters; at most {MAX_STOP_CHARS} are allowed", param="stop"
        )
