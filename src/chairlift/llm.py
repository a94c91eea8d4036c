"""`LLM`: the engine in the caller's process, for scripts and notebooks. Shapes and names are vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypedDict

from chairlift import factory
from chairlift.config import EngineConfig
from chairlift.engine.client import InProcessClient
from chairlift.engine.offline import OfflineFrontend, OfflineRequest
from chairlift.engine.types import CompletionDelta, EngineInfo, RequestOutput, StepStats
from chairlift.errors import InvalidParameterError
from chairlift.progress import Progress
from chairlift.sampling_params import SamplingParams


class TokensPrompt(TypedDict):
    """A prompt that is already token ids."""

    prompt_token_ids: list[int]


Prompt = str | TokensPrompt
Message = Mapping[str, Any]


class LLM:
    """One model, loaded and ready. `generate` and `chat` batch continuously whatever they are given.

    Args:
        model: path of a `.gguf` file or a Hugging Face folder; None is the built-in default model.
        enable_prefix_caching: reuse the KV of shared prompt prefixes, between calls too.
        flags: any other flag of `chairlift serve`, with underscores (`max_num_seqs=8, threads=1, ...`).

    Raises:
        ConfigError: a flag is unknown or out of range.
        ModelLoadError: the model cannot be read.
    """

    def __init__(self, model: str | None = None, *, enable_prefix_caching: bool = True, **flags: Any) -> None:
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
        self._client = InProcessClient(factory.build_engine(config))
        self._frontend = OfflineFrontend(self._client, front.tokenizer, seed=config.seed)
        self._tokenizer = front.tokenizer
        self._chat_template = front.chat_template
        self._ids = count()

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
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt and return the results in the caller's order.

        `sampling_params` is one for all or one per prompt. `use_tqdm` (vLLM's name) forces the progress bar on or
        off; by default it shows on a terminal.

        Raises:
            RequestError: a prompt or a parameter is wrong; nothing has run then.
        """
        requests = self._requests(prompts, sampling_params)
        total = sum(request.params.n for request in requests)
        with Progress("Generating", total, "choices", enabled=use_tqdm) as progress:
            return self._frontend.run(
                requests, on_finished=lambda output: progress.advance(len(output.outputs))
            )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several at once, through the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Any = messages if several else [messages]
        return self.generate(
            [self._chat_prompt(conversation) for conversation in conversations],
            sampling_params,
            use_tqdm=use_tqdm,
        )

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams
    ) -> Iterator[CompletionDelta]:
        """Answer one conversation, yielding text as it comes."""
        (request,) = self._requests([self._chat_prompt(messages)], sampling_params)
        return self._frontend.stream(request)

    def close(self) -> None:
        """Stop the worker threads and release the memory."""
        self._client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chat_prompt(self, messages: Sequence[Message]) -> TokensPrompt:
        if self._chat_template is None:
            raise InvalidParameterError("the model has no chat template; give one with chat_template=FILE")
        text = self._chat_template.render(list(messages), add_generation_prompt=True)
        return {"prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def _requests(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> list[OfflineRequest]:
        many: Sequence[Any] = [prompts] if isinstance(prompts, (str, Mapping)) else prompts
        params = _one_each(sampling_params, len(many))
        return [self._request(prompt, each) for prompt, each in zip(many, params, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams) -> OfflineRequest:
        request_id = f"offline-{next(self._ids)}"
        if isinstance(prompt, str):
            return OfflineRequest(request_id, prompt, self._tokenizer.encode(prompt), params)
        if isinstance(prompt, Mapping) and "prompt_token_ids" in prompt:
            return OfflineRequest(request_id, None, list(prompt["prompt_token_ids"]), params)
        raise InvalidParameterError(
            f"a prompt is a text or {{'prompt_token_ids': [...]}}, not {type(prompt).__name__}",
            param="prompt",
        )


def _one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, number: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * number
    if len(params) != number:
        raise InvalidParameterError(
            f"{len(params)} sampling_params for {number} prompts; give one for all or one each",
            param="sampling_params",
        )
    return params
