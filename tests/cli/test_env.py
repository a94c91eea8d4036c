"""`chairlift env`: the truth about processor, kernels, memory and limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.cli import env
from chairlift.cli.main import main
from chairlift.config import ISAS

KINDS = ("linear f32", "linear int8", "attention", "rows", "sampling")


@pytest.fixture
def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["env", "--json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)
    if found["backend"] != "cpu":
        pytest.skip("needs the native module")
    return found


def test_every_kind_of_kernel_has_an_origin(facts: dict[str, str]) -> None:
    """What runs is said per kind of op, by the names that --isa knows."""
    assert facts["isa"] in ISAS
    assert {facts[f"kernels: {kind}"] for kind in KINDS} <= set(ISAS) - {"auto"}


def test_no_wider_instruction_set_is_hidden(facts: dict[str, str]) -> None:
    """Each one preferred to the bound one is named with what it needs."""
    for entry in facts["wider isa"].split("; "):
        assert entry == "none in this build" or entry.split(" needs ")[0] in ISAS


def test_memory_and_limits_are_there(facts: dict[str, str]) -> None:
    """Threads, limits of control groups and the setting of huge pages."""
    assert int(facts["threads"]) == int(facts["cores usable"])
    assert facts["cgroup cpu limit"] == "none" or facts["cgroup cpu limit"].endswith("cores")
    assert facts["cgroup memory limit"] == "none" or facts["cgroup memory limit"].endswith("GiB")
    assert facts["huge pages"]


def test_probe_measures_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """--probe adds rates, all of them above nothing; without native kernels it says what it needs."""
    assert main(["env", "--probe", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    rates = {name: value for name, value in facts.items() if name.startswith("probe: ")}
    if facts["backend"] != "cpu":
        assert facts["probe"] == "needs the native kernels"
        return
    assert set(rates) == {"probe: f32 fma", "probe: int8 products", "probe: reads"}
    assert all(float(value.split()[0]) > 0 for value in rates.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("always [madvise] never\n", "madvise (weights and the KV pool ask for them)"),
        ("[always] madvise never\n", "always (weights and the KV pool ask for them)"),
        ("always madvise [never]\n", "never (weights lie in small pages, slower to read)"),
        ("\n", "unknown (the kernel's file says none)"),
        (None, "unknown to this system"),
    ],
)
def test_huge_pages(text: str | None, expected: str, tmp_path: Path) -> None:
    """The kernel's setting and what follows from it, or that there is none."""
    setting = tmp_path / "enabled"
    if text is not None:
        setting.write_text(text)
    assert env.describe_huge_pages(setting) == expected
