"""Answers in OpenAI's shapes: whole documents and stream chunks, from the same deltas.

A writer belongs to one HTTP request. Choices of a batch of prompts have index prompt * n + branch.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.messages import TokenLogprobs
from chairlift.engine.stream import RequestStream, Usage
from chairlift.engine.types import CompletionDelta
from chairlift.sampling_params import SamplingParams
from chairlift.server.logprobs import CompletionLogprobs, chat_logprobs, joined, prompt_logprobs
from chairlift.server.prompts import Prompt
from chairlift.tokenizer.base import Tokenizer


@dataclass(slots=True)
class Writer(ABC):
    """What both endpoints share. `kind` and `chunk_kind` are the names in the field `object`."""

    id: str
    model: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    tokenizer: Tokenizer
    kind: str = ""
    chunk_kind: str = ""
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> dict[str, Any]:
        """The fields that begin a document or a chunk."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def index(self, prompt: int, delta: CompletionDelta) -> int:
        """The choice's index in the answer."""
        return prompt * self.params.n + delta.index

    def document(
        self, choices: Sequence[tuple[int, CompletionDelta]], streams: Sequence[RequestStream]
    ) -> dict[str, Any]:
        """The whole answer, from one joined delta per choice."""
        return {
            **self.head(self.kind),
            "choices": [self.choice(prompt, delta, streams[prompt]) for prompt, delta in choices],
            "usage": usage_document([stream.usage for stream in streams]),
        }

    @abstractmethod
    def choice(self, prompt: int, delta: CompletionDelta, stream: RequestStream) -> dict[str, Any]:
        """A finished choice."""

    @abstractmethod
    def chunk_choices(
        self, prompt: int, delta: CompletionDelta, stream: RequestStream
    ) -> list[dict[str, Any]]:
        """What is new of a choice, one entry per chunk; none when there is nothing to show yet."""

    def visible(self, delta: CompletionDelta) -> list[TokenLogprobs] | None:
        """Logprobs of the delta's tokens, without an end of sequence or stop token that is not shown."""
        entries = delta.logprobs
        if not entries or delta.finish_reason != "stop" or self.params.include_stop_str_in_output:
            return entries
        reason = delta.stop_reason
        by_token = (
            not isinstance(reason, str) or self.tokenizer.special_token_id(reason) == delta.token_ids[-1]
        )
        return entries[:-1] if by_token else entries


@dataclass(slots=True)
class CompletionWriter(Writer):
    """/v1/completions."""

    kind: str = "text_completion"
    chunk_kind: str = "text_completion"
    echo: bool = False
    wants_prompt_logprobs: bool = False  # vLLM's field, not echo's
    _logprobs: dict[int, CompletionLogprobs] = field(default_factory=dict)
    _held: dict[int, list[CompletionDelta]] = field(default_factory=dict)  # by prompt
    _begun: set[int] = field(default_factory=set)

    def choice(self, prompt: int, delta: CompletionDelta, stream: RequestStream) -> dict[str, Any]:
        """A finished choice, or what is new of one."""
        index = self.index(prompt, delta)
        shown = self._prompt_text(prompt) if self.echo and index not in self._begun else None
        self._begun.add(index)
        choice = {
            "index": index,
            "text": (shown or "") + delta.text,
            "logprobs": self._new_logprobs(index, delta, stream, shown),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }
        if self.wants_prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs(stream.prompt_logprobs or [], self.tokenizer)
        return choice

    def chunk_choices(
        self, prompt: int, delta: CompletionDelta, stream: RequestStream
    ) -> list[dict[str, Any]]:
        """The same shape as a finished choice."""
        self._held.setdefault(prompt, []).append(delta)
        waits = self.echo and self.params.logprobs is not None and stream.prompt_logprobs is None
        if waits and delta.index != 0:
            return []  # choice 0 will bring the prompt's logprobs
        choices = [self.choice(prompt, held, stream) for held in self._held.pop(prompt)]
        return [choice for choice in choices if _shows_something(choice)]

    def _prompt_text(self, prompt: int) -> str:
        given = self.prompts[prompt]
        if given.text is not None:
            return given.text
        return self.tokenizer.decode(given.token_ids, skip_special_tokens=False)

    def _new_logprobs(
        self, index: int, delta: CompletionDelta, stream: RequestStream, shown: str | None
    ) -> dict[str, Any] | None:
        """The delta's logprobs, after the prompt's where the prompt is `shown`."""
        if self.params.logprobs is None:
            return None
        builder = self._logprobs.get(index)
        if builder is None:
            skip = self.params.skip_special_tokens
            builder = CompletionLogprobs(self.tokenizer, skip_special_tokens=skip)
            self._logprobs[index] = builder
        if shown is None:
            return builder.add(self.visible(delta) or [])
        entries = stream.prompt_logprobs or [None] * len(stream.prompt_token_ids)
        first = builder.add_prompt(stream.prompt_token_ids, entries, shown)
        return joined(first, builder.add(self.visible(delta) or []))


@dataclass(slots=True)
class ChatWriter(Writer):
    """/v1/chat/completions."""

    kind: str = "chat.completion"
    chunk_kind: str = "chat.completion.chunk"
    wants_prompt_logprobs: bool = False
    _begun: set[int] = field(default_factory=set)

    def document(
        self, choices: Sequence[tuple[int, CompletionDelta]], streams: Sequence[RequestStream]
    ) -> dict[str, Any]:
        """The whole answer."""
        document = Writer.document(self, choices, streams)  # super() does not survive slots=True
        if self.wants_prompt_logprobs:
            document["prompt_logprobs"] = prompt_logprobs(streams[0].prompt_logprobs or [], self.tokenizer)
        return document

    def choice(self, prompt: int, delta: CompletionDelta, stream: RequestStream) -> dict[str, Any]:
        """A finished choice."""
        return {
            "index": self.index(prompt, delta),
            "message": {"role": "assistant", "content": delta.text, "refusal": None},
            "logprobs": self._new_logprobs(delta),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def chunk_choices(
        self, prompt: int, delta: CompletionDelta, stream: RequestStream
    ) -> list[dict[str, Any]]:
        """The role first, then text, logprobs and in the end the reason."""
        index = self.index(prompt, delta)
        chunks = []
        if index not in self._begun:
            self._begun.add(index)
            chunks.append(_chat_chunk(index, {"role": "assistant", "content": ""}))
        logprobs = self._new_logprobs(delta)
        if delta.text or delta.finish_reason or (logprobs and logprobs["content"]):
            chunk = _chat_chunk(index, {"content": delta.text} if delta.text else {})
            chunk["logprobs"] = logprobs
            chunk["finish_reason"] = delta.finish_reason
            if delta.stop_reason is not None:
                chunk["stop_reason"] = delta.stop_reason
            chunks.append(chunk)
        return chunks

    def _new_logprobs(self, delta: CompletionDelta) -> dict[str, Any] | None:
        if self.params.logprobs is None:
            return None
        return chat_logprobs(self.visible(delta) or [], self.tokenizer)


def usage_document(usages: Sequence[Usage]) -> dict[str, Any]:
    """OpenAI's `usage`: every prompt counts once, however many choices it has."""
    prompt = sum(usage.prompt_tokens for usage in usages)
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached_tokens for usage in usages)},
    }


def _shows_something(choice: dict[str, Any]) -> bool:
    logprobs = choice["logprobs"]
    return bool(choice["text"] or choice["finish_reason"] or (logprobs and logprobs["tokens"]))


def _chat_chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
