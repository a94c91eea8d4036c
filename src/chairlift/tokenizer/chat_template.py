"""`ChatTemplate`: messages to the prompt text that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from chairlift.errors import InvalidParameterError, ModelLoadError
from chairlift.tokenizer.template_sandbox import MAX_SIZE, BoundedEnvironment, TemplateLimitError

MAX_TEMPLATE_CHARS = 500_000


class ChatTemplate:
    """A model's Jinja template, rendered as Hugging Face does but in a sandbox with bounds.

    What users write is data to the template and never rendered itself.

    Raises:
        ModelLoadError: the source is not a Jinja template that can be used.
    """

    def __init__(self, source: str, bos_token: str | None = None, eos_token: str | None = None) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelLoadError(
                f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} are allowed"
            )
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._environment = BoundedEnvironment()
        try:
            self._template = self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelLoadError(
                f"the chat template is wrong in line {error.lineno}: {error.message}"
            ) from error
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise ModelLoadError(f"the chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt text. Keys of `messages` whose value is None are left out.

        Raises:
            InvalidParameterError: the template refuses the messages, breaks on them, or takes too long.
        """
        values = {
            **extra,
            **self._tokens,
            "messages": [{k: v for k, v in message.items() if v is not None} for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        self._environment.start()
        try:
            self._environment.bounded(values["messages"])
            return self._collect(values)
        except TemplateError as error:
            raise InvalidParameterError(
                f"the chat template refuses the messages: {error.message or type(error).__name__}",
                param="messages",
            ) from error
        except Exception as error:  # anything at all may go wrong in a stranger's template
            raise InvalidParameterError(
                f"the chat template breaks on the messages: {type(error).__name__}: {error}", param="messages"
            ) from error

    def _collect(self, values: dict[str, Any]) -> str:
        pieces, size = [], 0
        for piece in self._template.generate(values):
            self._environment.pay(1)
            pieces.append(piece)
            size += len(piece)
            if size > MAX_SIZE:
                raise TemplateLimitError(f"the chat template writes more than {MAX_SIZE} characters")
        return "".join(pieces)
