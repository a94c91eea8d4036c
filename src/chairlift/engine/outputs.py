"""From token ids to what callers see: text, stop strings, logprobs, finish reasons. One object per choice.

Runs in the front end, one call per frame and choice. It knows nothing of processes, tasks or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.stop_strings import StopPatterns, StopStringMatcher
from chairlift.engine.types import CompletionDelta, CompletionOutput, Logprob, TokenUpdate
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.base import Tokenizer
from chairlift.tokenizer.detokenizer import IncrementalDetokenizer


class OutputRules:
    """What all choices of one request share: how its text is cut. Made once per request.

    A stop string that is exactly a special token works although special tokens are not printed: the engine is
    given its id as a stop token. It stays a text stop too, for a model that spells it out.
    """

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.params = params
        self.tokenizer = tokenizer
        self.stop_patterns = StopPatterns(params.stop)
        found = ((tokenizer.special_token_id(text), text) for text in params.stop)
        self.special_stops: dict[int, str] = {i: text for i, text in found if i is not None}

    def engine_params(self, branch: int, max_tokens: int) -> SamplingParams:
        """The parameters as the engine gets them: no stop strings (they are handled here, on text), and
        prompt logprobs from the first choice only."""
        ids = dict.fromkeys((*self.params.stop_token_ids, *self.special_stops))
        return replace(
            self.params,
            n=1,
            stop=(),
            stop_token_ids=tuple(ids),
            max_tokens=max_tokens,
            prompt_logprobs=self.params.prompt_logprobs if branch == 0 else None,
        )


class _TextCutter:
    """Ids to text that may be shown: whole characters only, and nothing of a stop string."""

    def __init__(self, rules: OutputRules) -> None:
        params = rules.params
        self._detokenizer = IncrementalDetokenizer(
            rules.tokenizer, skip_special_tokens=params.skip_special_tokens
        )
        self._min_tokens = params.min_tokens
        self._stops = (
            StopStringMatcher(rules.stop_patterns, include_in_output=params.include_stop_str_in_output)
            if params.stop
            else None
        )

    def push(self, ids: Sequence[int], num_before: int) -> tuple[str, int, str | None]:
        """(text to show, number of ids used, stop string hit) of new ids that follow `num_before` others."""
        text = ""
        for i, token_id in enumerate(ids):
            piece = self._detokenizer.push(token_id)
            if self._stops is None:
                text += piece
                continue
            released, stop = self._stops.push(piece, armed=num_before + i + 1 > self._min_tokens)
            text += released
            if stop is not None:
                return text, i + 1, stop
        return text, len(ids), None

    def flush(self, num_tokens: int) -> tuple[str, str | None]:
        """(text held back until now, stop string hit in it) once no more ids will come."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest, None
        released, stop = self._stops.push(rest, armed=num_tokens > self._min_tokens)
        return released + self._stops.flush(), stop


class OutputProcessor:
    """The growing output of one choice.

    `push` gives what is new; joined, the deltas' texts are exactly the final text. Text is held back while it
    may be half a character or the start of a stop string. `token_ids` includes an ending stop token or EOS, and
    every token up to the one that completed a stop string; `text` does not show them (unless
    include_stop_str_in_output).
    """

    def __init__(self, index: int, rules: OutputRules) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self._rules = rules
        self._cutter = _TextCutter(rules) if rules.params.detokenize else None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] | None = None if rules.params.logprobs is None else []

    @property
    def finished(self) -> bool:
        """True when no more will come."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """All text shown so far."""
        return "".join(self._texts)

    def push(self, update: TokenUpdate) -> CompletionDelta:
        """Take a step's news. After it `finished` may be true although the engine goes on: abort it there.

        Once finished, nothing more may be pushed.
        """
        ids = update.new_token_ids
        shown = ids
        if update.finish_reason == "stop" and ids and not self._rules.params.include_stop_str_in_output:
            shown = ids[:-1]  # the EOS or stop token
        text, used, stop = (
            self._cutter.push(shown, len(self.token_ids)) if self._cutter else ("", len(shown), None)
        )
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
            ids = ids[:used]
        self.token_ids += ids
        if stop is None and update.finish_reason is not None:
            text += self._finish(update.finish_reason, update.stop_reason)
        return self._delta(text, ids, update.logprobs)

    def finish(self, reason: str) -> CompletionDelta:
        """End the choice from this side (an abort): show what was held back."""
        return self._delta(self._finish(reason, None), [], None)

    def result(self) -> CompletionOutput:
        """The choice so far, in the shape that Python users get."""
        entries = self._logprobs
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(self.token_ids),
            cumulative_logprob=None if entries is None else sum(entry.logprob for entry in entries),
            logprobs=None if entries is None else [named_logprobs(e, self._rules.tokenizer) for e in entries],
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _finish(self, reason: str, stop_reason: int | str | None) -> str:
        """Note why it ended and return the text held back until now."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        text, stop = self._cutter.flush(len(self.token_ids)) if self._cutter else ("", None)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif reason == "stop" and self.token_ids:
            text += self._special_stop(self.token_ids[-1])
        return text

    def _special_stop(self, last: int) -> str:
        """Report the stop string that named the ending special token; returns it if it is to be shown."""
        stop = self._rules.special_stops.get(last)
        if stop is None:
            return ""
        self.stop_reason = stop
        params = self._rules.params
        return stop if params.include_stop_str_in_output and params.skip_special_tokens else ""

    def _delta(self, text: str, ids: list[int], logprobs: list[TokenLogprobs] | None) -> CompletionDelta:
        if text:
            self._texts.append(text)
        taken = None
        if self._logprobs is not None:
            taken = (logprobs or [])[: len(ids)]
            self._logprobs += taken
        return CompletionDelta(
            index=self.index,
            text=text,
            token_ids=ids,
            logprobs=taken,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


def named_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[int, Logprob]:
    """vLLM's shape of one position: the token taken, then the most likely ones, by id."""
    taken = (entry.token_id, entry.logprob, entry.rank)
    top = zip(entry.top_ids, entry.top_logprobs, range(1, len(entry.top_ids) + 1), strict=True)
    return {
        token_id: Logprob(logprob, rank, tokenizer.token_text(token_id))
        for token_id, logprob, rank in (taken, *top)
    }
