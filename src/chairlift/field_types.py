"""Checks the values of a dataclass against its annotations: a wrong type is an error where the object is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

_NAMES = {bool: "True or False", int: "an integer", float: "a number", str: "a text", NoneType: "None"}


def check_field_types(instance: object, refuse: Callable[[str, object, str], Exception]) -> None:
    """Raise `refuse(name, value, "an integer or None")` for the first field that holds a wrong type.

    Fields of bool, int, float, str and None are looked at; a bool is no number, and an int is a number.
    Fields of other types (lists, mappings, classes) are left to their owner.
    """
    owner: Any = type(instance)
    for name, kinds, wanted in _plain_fields(owner):
        value = getattr(instance, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise refuse(name, value, wanted)


@cache
def _plain_fields(owner: Any) -> tuple[tuple[str, tuple[type, ...], str], ...]:
    """(name, types that isinstance takes, those in words) of each field that can be checked."""
    fields = []
    for name, hint in get_type_hints(owner).items():
        kinds: tuple[Any, ...] = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        if all(kind in _NAMES for kind in kinds):
            wanted = " or ".join(_NAMES[kind] for kind in kinds)
            fields.append((name, (*kinds, int) if float in kinds else kinds, wanted))
    return tuple(fields)
