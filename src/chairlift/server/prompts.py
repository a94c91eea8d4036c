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


async def read_prompts(context: ServerContext, prompt: Any, *, add_special_tokens: bool) -> list[Prompt]:
    """The prompts of /v1/completions: a text, a list of texts, a list of ids (one prompt), a list of those.

    Raises:
        InvalidParameterError: none of these, or one without any token.
    """
    items = _split(prompt)
    prompts = []
    for index, item in enumerate(items):
        where = "prompt" if len(items) == 1 else f"prompt {index}"
        if isinstance(item, str):
            found = Prompt(await encode(context, item, add_special_tokens=add_special_tokens), item)
        else:
            found = Prompt(item, None)
        if not found.token_ids:
            raise InvalidParameterError(f"{where} has no tokens", param="prompt")
        prompts.append(found)
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


async def encode(context: ServerContext, text: str, *, add_special_tokens: bool) -> list[int]:
    """Ids of a text; long ones are worked on in a thread."""
    if len(text) <= THREAD_CHARS:
        return context.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(context.tokenizer.encode, text, add_special_tokens=add_special_tokens)


def _split(prompt: Any) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise _wrong(prompt)
    if all(isinstance(item, str) for item in prompt):
        return prompt
    if all(type(item) is int for item in prompt):
        return [prompt]
    for item in prompt:
        if not isinstance(item, list) or not all(type(token_id) is int for token_id in item):
            raise _wrong(item)
    return prompt


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
