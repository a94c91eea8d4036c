"""Chat messages in OpenAI's many spellings, to the plain ones that templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def normalize_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages whose content is a text: text parts are joined, null and missing are empty.

    Raises:
        InvalidParameterError: no messages, or one of the wrong form.
        UnsupportedParameterError: a part that is not text (an image, a sound).
    """
    if not _is_list(messages) or not messages:
        raise InvalidParameterError("messages must be a list of at least one message", param="messages")
    return [_normalized(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _normalized(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidParameterError(f"{where} is not an object", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidParameterError(
            f"{where}.role is {role!a}; it must be one of {', '.join(ROLES)}", param="messages"
        )
    normalized = {
        **message,
        "role": ROLES[role],
        "content": _text(message.get("content"), f"{where}.content"),
    }
    if message.get("tool_calls") is not None:
        normalized["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    return normalized


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not _is_list(content):
        raise InvalidParameterError(f"{where} must be a text or a list of parts", param="messages")
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
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
    if not _is_list(calls) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidParameterError(f"{where} must be a list of objects", param="messages")
    return [_tool_call(call) for call in calls]


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
