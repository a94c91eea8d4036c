"""What can never run is refused before it is queued, with the numbers in the message."""

from __future__ import annotations

from dataclasses import dataclass

from chairlift.core.block_manager import num_blocks_for
from chairlift.errors import ContextLengthError, InvalidParameterError, PoolTooSmallError


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What bounds a single request. A front end may check with the same numbers before it sends one."""

    max_model_len: int  # tokens, prompt and output
    num_blocks: int  # of the KV pool
    block_size: int  # tokens

    def max_total_tokens(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """Check a request and return how many tokens, prompt and output, it may reach.

        `max_tokens=None` means as many as fit into the context (and into the pool, if that holds less).

        Raises:
            InvalidParameterError: the prompt is empty.
            ContextLengthError: the prompt, or prompt + max_tokens, is too long.
            PoolTooSmallError: its KV would need more blocks than the pool has.
        """
        if num_prompt_tokens == 0:
            raise InvalidParameterError("the prompt has no tokens", param="prompt")
        self._check_context(num_prompt_tokens, max_tokens or 0)
        if max_tokens is None:
            total = min(self.max_model_len, max(self.num_blocks * self.block_size, num_prompt_tokens) + 1)
        else:
            total = num_prompt_tokens + max_tokens
        self._check_pool(num_prompt_tokens, total)
        return total

    def _check_context(self, num_prompt_tokens: int, max_tokens: int) -> None:
        if num_prompt_tokens >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens; the context holds {self.max_model_len} tokens "
                "(--max-model-len), at least one of them for output",
                param="prompt",
            )
        if num_prompt_tokens + max_tokens > self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}, together "
                f"{num_prompt_tokens + max_tokens}; the context holds {self.max_model_len} tokens "
                "(--max-model-len)",
                param="max_tokens",
            )

    def _check_pool(self, num_prompt_tokens: int, total: int) -> None:
        # The last token is only sampled, so it needs no KV; with max_tokens=0 every token is computed.
        need = num_blocks_for(max(num_prompt_tokens, total - 1), self.block_size)
        if need > self.num_blocks:
            raise PoolTooSmallError(
                f"{num_prompt_tokens} prompt tokens and max_tokens {total - num_prompt_tokens} need {need} KV "
                f"blocks of {self.block_size} tokens; the pool has {self.num_blocks} (--kv-cache-memory)",
                param="max_tokens",
            )
