"""Instruction sets: what is detected, what is bound, and that the kernel table says where its kernels came from."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from chairlift.config import ISAS

native: Any = pytest.importorskip(
    "chairlift.ops._native", reason="the native module is not built (make native)"
)

BY_PREFERENCE = [name for name, _, _ in native.isas()]
AVAILABLE = [name for name, _, available in native.isas() if available]


def test_generic_comes_first_and_is_always_there() -> None:
    """The readable kernels need nothing."""
    assert BY_PREFERENCE[0] == AVAILABLE[0] == "generic"


def test_the_configuration_knows_every_instruction_set() -> None:
    """--isa takes each name of this build."""
    assert set(BY_PREFERENCE) <= set(ISAS)


def test_auto_is_the_last_available() -> None:
    """Binding follows the order of preference."""
    assert native.Context(1, "auto").isa == AVAILABLE[-1]


@pytest.mark.parametrize("isa", AVAILABLE)
def test_kernels_come_from_the_instruction_set_or_a_narrower_one(isa: str) -> None:
    """A table binds kernels of its own and inherits others; it never runs what was not asked for."""
    origins = native.Context(1, isa).kernel_origins
    assert set(origins) == {"linear f32", "linear int8", "attention", "rows", "sampling"}
    assert set(origins.values()) <= set(AVAILABLE[: AVAILABLE.index(isa) + 1])
    assert isa in origins.values()


@pytest.mark.parametrize("isa", [name for name in ISAS if name not in ("auto", *AVAILABLE)])
def test_one_that_is_not_available_is_refused_by_name(isa: str) -> None:
    """The message names it, and what is missing or what there is."""
    with pytest.raises(ValueError, match=f'isa is "{isa}".*(lacks|this build has)'):
        native.Context(1, isa)


@pytest.mark.parametrize("isa", [name for name in BY_PREFERENCE if name not in AVAILABLE])
def test_the_refusal_names_only_what_is_missing(isa: str) -> None:
    """Features that this processor has are not in the list of those that it lacks."""
    with pytest.raises(ValueError, match="lacks") as refusal:
        native.Context(1, isa)
    named = str(refusal.value).split(" lacks ")[1].split(", ")
    found = dict(native.cpu_features())
    assert named
    assert not any(found[name] for name in named)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of /proc/cpuinfo on x86")
def test_features_are_those_that_the_kernel_reports() -> None:
    """CPUID and the saved registers, as read here, agree with Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            break
    else:
        pytest.skip("no flags in /proc/cpuinfo")
    flags = line.split(":", 1)[1].split()
    assert {name: name in flags for name, _ in native.cpu_features()} == dict(native.cpu_features())
