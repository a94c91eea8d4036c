"""Chat messages in OpenAI's many spellings, to the plain ones that templates expect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chairlift.errors import InvalidParameterError, UnsupportedParameterError

# developer is OpenAI's newer word for system; templates only know the older one.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "function",
}
_TEXT_PARTS = ("text", "input_text", "output_text")


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages whose content is a text: text parts are joined, null and missing are empty.

    Raises:
        InvalidParameterError: no messages, or one of the wrong form.
        UnsupportedParameterError: a part that is not text (an image, a sound).
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidParameterError("messages must be a list of at least one message", param="messages")
    return [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]


def final_content(messages: Sequence[dict[str, Any]]) -> str:
    """The text that continue_final_message goes on with."""
    return str(messages[-1]["content"])


def _plain(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidParameterError(f"{where} is not an object", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidParameterError(
            f"{where}.role is {role!a}; it must be one of {', '.join(ROLES)}", param="messages"
        )
    plain = {
        **message,
        "role": ROLES[role],
        "content": _text(message.get("content"), f"{where}.content"),
    }
    if message.get("tool_calls") is not None:
        plain["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidParameterError(f"{where} must be a text or a list of parts", param="messages")
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if not isinstance(kind, str):
        raise InvalidParameterError(f"{where} must be an object with a type", param="messages")
    if kind not in _TEXT_PARTS:
        raise UnsupportedParameterError(
            f"{where} has type {kind!a}; this model reads text only", param="messages"
        )
    if not isinstance(part.get("text"), str):
        raise InvalidParameterError(f"{where}.text is not a text", param="messages")
    return str(part["text"])


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as an object, as templates want them, where they are one."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise InvalidParameterError(f"{where} must be a list of objects", param="messages")
    return [_tool_call(call) for call in calls]


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
