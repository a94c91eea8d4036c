"""From what a request calls its prompt, or its messages, to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.errors import InvalidParameterError, UnsupportedParameterError
from chairlift.server.context import ServerContext
from chairlift.tokenizer.messages import normalize_messages

THREAD_CHARS = 4096  # longer texts are tokenized beside the event loop, so that streams flow on


@dataclass(slots=True)
class Prompt:
    """One prompt, ready to submit."""

    token_ids: list[int]
    text: str | None  # None when the request gave ids


def split_prompts(prompt: Any) -> list[Any]:
    """The items of what /v1/completions calls the prompt: a text, a list of texts, a list of ids (one prompt), a
    list of those. Quick however many there are: `read_prompts` looks at each.

    Raises:
        InvalidParameterError: no text and no list, or an empty one.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _wrong(prompt)
    return [prompt] if _are_ids(prompt) else prompt


async def read_prompts(
    context: ServerContext, items: Sequence[Any], *, add_special_tokens: bool
) -> list[Prompt]:
    """The prompts of `split_prompts`.

    Raises:
        InvalidParameterError: an item is neither a text nor a list of ids like the others, or has no tokens.
    """
    if all(isinstance(item, str) for item in items):
        encoded = await encode(context, items, add_special_tokens=add_special_tokens)
        prompts = [Prompt(ids, text) for ids, text in zip(encoded, items, strict=True)]
    else:
        prompts = [Prompt(_checked_ids(item), None) for item in items]
    for index, prompt in enumerate(prompts):
        if not prompt.token_ids:
            where = "prompt" if len(prompts) == 1 else f"prompt {index}"
            raise InvalidParameterError(f"{where} has no tokens", param="prompt")
    return prompts


async def read_chat(
    context: ServerContext,
    messages: Any,
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    add_special_tokens: bool | None,
) -> Prompt:
    """The prompt that the chat template makes of the messages. The template writes the special tokens, so
    none are added unless asked for.

    Raises:
        InvalidParameterError: wrong messages, a template that refuses them, contradicting options.
        UnsupportedParameterError: no template, or content that is not text.
    """
    template = context.chat_template
    if template is None:
        raise UnsupportedParameterError(
            "this model has no chat template; use /v1/completions or start with --chat-template",
            param="messages",
        )
    chat = normalize_messages(messages)
    opens = add_generation_prompt if add_generation_prompt is not None else not continue_final_message
    if continue_final_message and opens:
        raise InvalidParameterError(
            "continue_final_message goes on with a message that add_generation_prompt would close",
            param="continue_final_message",
        )

    def render_and_encode() -> Prompt:
        text = template.render(chat, add_generation_prompt=opens)
        if continue_final_message:
            text = _cut_after(text, chat[-1]["content"])
        ids = context.tokenizer.encode(text, add_special_tokens=bool(add_special_tokens))
        return Prompt(ids, text)

    prompt = await asyncio.to_thread(render_and_encode)
    if not prompt.token_ids:
        raise InvalidParameterError("the messages make a prompt without tokens", param="messages")
    return prompt


async def encode(
    context: ServerContext, texts: Sequence[str], *, add_special_tokens: bool
) -> list[list[int]]:
    """Ids of texts; many or long ones are worked on in a thread."""

    def work() -> list[list[int]]:
        return context.tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)

    return work() if sum(map(len, texts)) <= THREAD_CHARS else await asyncio.to_thread(work)


def _checked_ids(item: Any) -> list[int]:
    if not isinstance(item, list) or (item and not _are_ids(item)):
        raise _wrong(item)
    return item


def _are_ids(items: list[Any]) -> bool:
    return set(map(type, items)) == {int}  # at C's speed; a bool is no id


def _wrong(given: Any) -> InvalidParameterError:
    shown = "missing" if given is None else ascii(given)
    shown = shown if len(shown) <= 100 else shown[:100] + "..."
    return InvalidParameterError(
        f"prompt is {shown}; it must be a text, a list of texts, a list of token ids or a list of such lists",
        param="prompt",
    )


def _cut_after(text: str, content: str) -> str:
    """The rendered text up to the end of the final message's content."""
    core = content.strip()
    start = text.rfind(core) if core else -1
    if start < 0:
        raise InvalidParameterError(
            "continue_final_message: the template does not show the final message's content",
            param="continue_final_message",
        )
    whole = content.lstrip()
    return text[: start + len(whole)] if text.startswith(whole, start) else text[: start + len(core)]
