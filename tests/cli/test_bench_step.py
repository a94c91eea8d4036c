"""`chairlift bench step` as a person runs it, on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chairlift.cli.main import main
from cli.serving import SMALL
from ops.backends import BACKENDS

needs_kernels = pytest.mark.skipif(len(BACKENDS) == 1, reason="needs the native module")


def run(path: Path, *args: str) -> int:
    return main(["bench", "step", "--model", str(path), "--running", "2", "--steps", "4", *args, *SMALL])


@needs_kernels
def test_profile_tells_where_time_goes(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Machine, ops, what is outside them, and how busy the kernels are."""
    assert run(tiny_model, "--profile", "--prompt-tokens", "5") == 0
    out = capsys.readouterr().out
    for words in ("GFLOP/s of f32", "2 running, 64 tokens each, and a prompt of 5", "attention", "of bound"):
        assert words in out
    for words in ("outside the ops", "schedule", "sample", "kernels busy"):
        assert words in out


def test_without_profile_only_times(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two lines: what runs, and how long a step of it takes."""
    assert run(tiny_model) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "ms a step" in lines[1]


@needs_kernels
def test_json_has_the_numbers(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The mix, every step, each op's work, and the machine's bounds."""
    assert run(tiny_model, "--profile", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["running"], result["context"], len(result["steps_s"])) == (2, 64, 4)
    assert all(op["seconds"] > 0 for op in result["ops"])
    assert result["machine"]["flops"] > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--running", "-1"], "--running is -1"),
        (["--steps", "0"], "--steps is 0"),
        (["--running", "0"], "both 0"),
        (["--running", "65"], "--max-num-seqs"),
    ],
    ids=str,
)
def test_bad_values_are_explained(
    tiny_model: Path, args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr that names the flag, and a code that is not 0."""
    assert main(["bench", "step", "--model", str(tiny_model), *args]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1


def test_the_reference_backend_is_named(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an instruction set to tell, the backend stands behind the model."""
    assert run(tiny_model, "--backend", "reference") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": reference")
