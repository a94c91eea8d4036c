"""What a computed step means for one request: which sampled tokens count, and what to report."""

from __future__ import annotations

from chairlift.core.messages import ModelRunnerOutput, RequestResult, ScheduledRequest
from chairlift.core.request import Request
from chairlift.errors import ServerError


def append_sampled(request: Request, share: ScheduledRequest, result: ModelRunnerOutput) -> list[int]:
    """Append the accepted drafts and the token after them, up to the one that ends the request; return them.

    All known tokens of the request must be computed. Accepted drafts have KV too; rejected ones left some that
    will be written over.

    Raises:
        ServerError: the runner returned no token, or more than the drafts allow.
    """
    if request.sampling_params.max_tokens == 0:  # only its prompt was asked for
        request.finish_reason = "length"
        return []
    sampled = result.sampled_token_ids.get(request.request_id, [])
    if not 1 <= len(sampled) <= 1 + len(share.draft_token_ids):
        raise ServerError(
            f"the runner returned {len(sampled)} tokens for {request.request_id}, "
            f"which had {len(share.draft_token_ids)} drafts"
        )
    num_appended = 0
    for token_id in sampled:
        request.append_token(token_id)
        num_appended += 1
        if request.finish_reason is not None:
            break
    request.num_computed_tokens += num_appended - 1
    return sampled[:num_appended]


def outcome_of(request: Request, new_token_ids: list[int], result: ModelRunnerOutput) -> RequestResult | None:
    """The report of a step for one request; None when it neither got a token nor ended."""
    if not new_token_ids and request.finish_reason is None:
        return None
    logprobs = result.logprobs.get(request.request_id)
    return RequestResult(  # by position: there is one for each token of each stream
        request.request_id,
        new_token_ids,
        request.finish_reason,
        request.stop_reason,
        None if logprobs is None else logprobs[: len(new_token_ids)],
        request.take_prompt_logprobs(),
        request.num_cached_tokens,
        request.num_preemptions,
    )
