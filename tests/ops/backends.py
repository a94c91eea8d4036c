"""The backends that this machine has: the reference, and the native kernels per instruction set."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

from chairlift.config import ISAS
from chairlift.ops.interface import Ops
from chairlift.ops.reference import ReferenceOps

MakeOps = Callable[[int, int], Ops]  # (max_num_tokens, max_num_logits)
FASTER_ISAS = tuple(isa for isa in ISAS if isa not in ("auto", "generic"))  # those with kernels of their own


def available_isas() -> list[str]:
    """Those of FASTER_ISAS that this processor has; none without the native module."""
    return [isa for isa in FASTER_ISAS if _runs(isa)]


def available_backends() -> dict[str, MakeOps]:
    """Constructors by name; without the native module only the reference is there."""
    found: dict[str, MakeOps] = {"reference": ReferenceOps}
    if importlib.util.find_spec("chairlift.ops._native") is None:
        return found
    found["cpu generic"] = partial(_cpu, "generic", 1)
    return found | {f"cpu {isa}": partial(_cpu, isa, 2) for isa in available_isas()}


def _runs(isa: str) -> bool:
    if importlib.util.find_spec("chairlift.ops._native") is None:
        return False
    try:
        _cpu(isa, 1, 1, 1).close()
    except ValueError:  # not on this processor
        return False
    return True


def _cpu(isa: str, threads: int, max_num_tokens: int, max_num_logits: int) -> Ops:
    from chairlift.ops.cpu import CpuOps

    return CpuOps(threads, max_num_tokens, max_num_logits, isa)


BACKENDS = available_backends()
