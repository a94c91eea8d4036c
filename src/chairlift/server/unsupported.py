"""Fields that clients know from OpenAI, vLLM or llama.cpp and that we do not implement.

Answering as if they had not been sent would be a wrong answer, so they are refused by name, except at null
and at the values listed here, which change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chairlift.errors import InvalidParameterError, UnsupportedParameterError

MAX_EXTRA_FIELDS = 200

# name -> values at which the field changes nothing (null always does)
_EVERYWHERE: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1, 0),
    "early_stopping": (False,),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_whitespace_pattern": (),
    "structured_outputs": ({},),
    "structural_tag": (),
    "response_format": ({"type": "text"},),
    "logits_processors": ([],),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "priority": (0,),
    "cache_salt": ("",),
    "lora": (),
    "lora_request": (),
    "adapter": (),
    "prompt_embeds": (),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    # llama.cpp's samplers; mirostat's state would not survive a restart of the engine
    "mirostat": (0,),
    "typical_p": (1,),
    "top_a": (0,),
    "tfs_z": (1,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (-1,),
    "grammar": ("",),
    "json_schema": ({},),
}
_COMPLETIONS: dict[str, tuple[Any, ...]] = {"suffix": ("",)}
_CHAT: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "echo": (False,),
    "best_of": (1,),
}
# Known, and without an effect on what we answer, whatever the value.
_NO_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "include_reasoning",
        "spaces_between_special_tokens",
        "cache_prompt",
        "request_id",
        "moderation",
    }
)
_REASONS = {
    "chat_template": "templates come from the model or --chat-template, never from a request",
    "chat_template_kwargs": "templates get no values from a request",
}


def check_extra_fields(extra: Mapping[str, Any], *, chat: bool) -> list[str]:
    """Names of the fields that nobody knows, of those that a request has beyond the supported ones.

    Raises:
        InvalidParameterError: they are too many to be a mistake.
        UnsupportedParameterError: one is known and set to something that would change the answer.
    """
    if len(extra) > MAX_EXTRA_FIELDS:
        raise InvalidParameterError(
            f"the request has {len(extra)} fields that are not known; limit {MAX_EXTRA_FIELDS}"
        )
    known = _EVERYWHERE | (_CHAT if chat else _COMPLETIONS)
    unknown = []
    for name, value in extra.items():
        if name in known:
            if not _is_no_op(name, value, known[name], extra):
                reason = _REASONS.get(name, "it is not supported")
                raise UnsupportedParameterError(f"{name} cannot be used: {reason}", param=name)
        elif name not in _NO_EFFECT:
            unknown.append(name)
    return unknown


def _is_no_op(name: str, value: Any, no_ops: tuple[Any, ...], extra: Mapping[str, Any]) -> bool:
    if name in ("tools", "functions"):
        choice = extra.get("tool_choice" if name == "tools" else "function_call")
        if choice == "none":  # tools that must not be used
            return True
    return value is None or any(
        type(value) is type(no_op) and value == no_op for no_op in (*no_ops, *map(_as_float, no_ops))
    )


def _as_float(value: Any) -> Any:
    return float(value) if type(value) is int else value
