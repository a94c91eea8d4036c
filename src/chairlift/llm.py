"""`LLM`: the engine in the caller's process, for scripts and notebooks. Shapes and names are vLLM's."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import index
from threading import RLock
from typing import Any, TypedDict

from chairlift import factory
from chairlift.config import EngineConfig
from chairlift.engine.client import InProcessClient
from chairlift.engine.offline import OfflineFrontend, OfflineRequest
from chairlift.engine.types import CompletionDelta, EngineInfo, RequestOutput, StepStats
from chairlift.errors import ConfigError, EngineDeadError, InvalidParameterError
from chairlift.progress import Progress
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.messages import normalize_messages


class TokensPrompt(TypedDict):
    """A prompt that is already token ids."""

    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    """A prompt that is a text, as vLLM spells it where prompts are dicts."""

    prompt: str


Prompt = str | TextPrompt | TokensPrompt
Message = Mapping[str, Any]


class LLM:
    """One model, loaded and ready. `generate` and `chat` batch continuously whatever they are given.

    Calls from several threads take turns: hand in many prompts at once to have them share the steps.
    What was noticed at the start (a clamped context, a slow backend) goes to the log "chairlift" as warnings.

    Args:
        model: path of a `.gguf` file or a Hugging Face folder; None is the built-in default model. It is kept in
            `download_dir`, ~/.cache/chairlift unless given: the environment variables that move the cache of the
            `chairlift` command ($CHAIRLIFT_CACHE, $XDG_CACHE_HOME) are not read here.
        enable_prefix_caching: reuse the KV of shared prompt prefixes, between calls too.
        flags: any other engine flag of `chairlift generate`, with underscores (`max_num_seqs=8, threads=1, ...`).

    Raises:
        ConfigError: a flag is unknown, of the wrong type or out of range.
        ModelLoadError: the model cannot be read.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        enable_prefix_caching: bool = True,
        **flags: Any,
    ) -> None:
        if "max_num_waiting" in flags:
            raise ConfigError(
                "max_num_waiting is a setting of `chairlift serve`: LLM queues whatever it is given at once"
            )
        config = EngineConfig.from_flags(model=model, enable_prefix_caching=enable_prefix_caching, **flags)
        self._open(factory.resolve_model(config))

    @classmethod
    def from_config(cls, config: EngineConfig) -> LLM:
        """Open from a config whose model path is already resolved."""
        llm = cls.__new__(cls)
        llm._open(config)
        return llm

    def _open(self, config: EngineConfig) -> None:
        front = factory.open_front(config)
        self._client = InProcessClient(factory.open_engine(config))
        self._frontend = OfflineFrontend(self._client, front.tokenizer, seed=config.seed)
        self._tokenizer = front.tokenizer
        self._chat_template = front.chat_template
        self._ids = count()
        self._lock = RLock()  # the engine has one caller at a time
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        """What was resolved at start: context, KV blocks, backend, notices."""
        return self._client.info

    @property
    def stats(self) -> StepStats:
        """Gauges and totals since the engine started: running, waiting, blocks, preemptions, prefix hits."""
        return self._client.stats()

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt and return the results in the caller's order.

        `sampling_params` is one for all or one per prompt. `use_tqdm` (vLLM's name) forces the progress bar on or
        off; by default it shows on a terminal.

        Raises:
            RequestError: a prompt or a parameter is wrong; nothing has run then.
            EngineDeadError: this LLM is closed.
        """
        with self._lock:
            self._check_open()
            return self._run(self._requests(prompts, sampling_params), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several at once, through the model's chat template.

        Messages are OpenAI's, read as the server reads them; the `prompt` of each result is what the template made
        of them. Raises what `generate` raises.
        """
        several = _is_list(messages) and len(messages) > 0 and all(_is_list(item) for item in messages)
        conversations: Sequence[Any] = messages if several else [messages]
        with self._lock:
            self._check_open()
            params = _one_each(sampling_params, len(conversations))
            requests = list(map(self._chat_request, conversations, params))
            return self._run(requests, use_tqdm)

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams
    ) -> Iterator[CompletionDelta]:
        """Answer one conversation, yielding text as it comes; other calls run between its steps.

        Raises what `generate` raises, at once.
        """
        with self._lock:
            self._check_open()
            (params,) = _one_each(sampling_params, 1)
            return self._in_turns(self._frontend.stream(self._chat_request(messages, params)))

    def close(self) -> None:
        """Stop the worker threads and release the memory, after the call under way; more than once is fine."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineDeadError("this LLM is closed; open another one")

    def _in_turns(self, deltas: Generator[CompletionDelta, None, None]) -> Iterator[CompletionDelta]:
        try:
            while True:
                with self._lock:
                    self._check_open()
                    delta = next(deltas, None)
                if delta is None:
                    return
                yield delta
        finally:
            with self._lock:
                deltas.close()

    def _run(self, requests: list[OfflineRequest], use_tqdm: bool | None) -> list[RequestOutput]:
        total = sum(request.params.n for request in requests)
        with Progress("Generating", total, "choices", enabled=use_tqdm) as progress:
            return self._frontend.run(
                requests, on_finished=lambda output: progress.advance(len(output.outputs))
            )

    def _chat_request(self, messages: Any, params: SamplingParams) -> OfflineRequest:
        if self._chat_template is None:
            raise InvalidParameterError("the model has no chat template; give one with chat_template=FILE")
        text = self._chat_template.render(normalize_messages(messages), add_generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False)  # the template writes its own
        return OfflineRequest(self._next_id(), text, ids, params)

    def _next_id(self) -> str:
        return f"offline-{next(self._ids)}"

    def _requests(self, prompts: Any, sampling_params: Any) -> list[OfflineRequest]:
        many = [prompts] if isinstance(prompts, (str, Mapping)) else _listed(prompts, "prompts", _PROMPT_FORM)
        params = _one_each(sampling_params, len(many))
        return [self._request(prompt, each) for prompt, each in zip(many, params, strict=True)]

    def _request(self, prompt: Any, params: SamplingParams) -> OfflineRequest:
        if isinstance(prompt, Mapping) and set(prompt) == {"prompt"} and isinstance(prompt["prompt"], str):
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            return OfflineRequest(self._next_id(), prompt, self._tokenizer.encode(prompt), params)
        if isinstance(prompt, Mapping) and set(prompt) == {"prompt_token_ids"}:
            return OfflineRequest(self._next_id(), None, _token_ids(prompt["prompt_token_ids"]), params)
        raise InvalidParameterError(f"a prompt is {_PROMPT_FORM}, not {prompt!r:.80}", param="prompts")


_PROMPT_FORM = "a text, {'prompt': text} or {'prompt_token_ids': [...]}"


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _listed(value: Any, param: str, item: str) -> list[Any]:
    """The items of any iterable but a text or a mapping, which would be an item itself."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        raise InvalidParameterError(f"{param} is {value!r:.80}; it must be {item}, or several", param=param)
    return list(value)


def _token_ids(ids: Any) -> list[int]:
    """Token ids as plain integers; those of numpy are fine."""
    return [_token_id(token_id) for token_id in _listed(ids, "prompts", "token ids")]


def _token_id(value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise InvalidParameterError(f"prompt_token_ids has {value!r:.80}, not a token id", param="prompts")


def _one_each(params: Any, number: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * number
    many = _listed(params, "sampling_params", "a SamplingParams")
    for each in many:
        if not isinstance(each, SamplingParams):
            raise InvalidParameterError(
                f"sampling_params has {each!r:.80}, not a SamplingParams", param="sampling_params"
            )
    if len(many) != number:
        raise InvalidParameterError(
            f"{len(many)} sampling_params for {number} prompts; give one for all or one each",
            param="sampling_params",
        )
    return many
