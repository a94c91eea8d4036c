"""A measured step computes what was asked for, and its parts add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chairlift.bench.step import StepMix, StepReport, measure, probe, profile, runner_of
from chairlift.bench.step_table import document, text
from chairlift.config import EngineConfig
from chairlift.engine.engine import Engine
from chairlift.errors import ConfigError
from chairlift.factory import build_engine
from chairlift.ops.interface import MachineLimits

LIMITS = MachineLimits(flops=1e9, int8_ops=2e9, read_bytes=1e9)
SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 256, "kv_cache_memory": 32 << 20}


def engine_of(path: Path, **flags: object) -> Engine:
    return build_engine(EngineConfig.from_flags(model=str(path), **{**SIZES, **flags}))


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Engine]:
    engine = engine_of(tiny_model)
    yield engine
    engine.close()


@pytest.mark.parametrize("mix", [StepMix(5, 20), StepMix(3, 40, 21), StepMix(0, 1, 30)], ids=str)
def test_each_step_computes_the_mix(engine: Engine, mix: StepMix) -> None:
    """Products of the hidden size see a row for each running request and prompt token; the engine is idle after."""
    if engine.info.backend == "reference":
        pytest.skip("needs the native module")
    report = measure(engine, mix, steps=8, limits=LIMITS)
    rows, layers = mix.running + mix.prompt_tokens, 2
    (qkv,) = [op for op in report.ops if op.name == "linear 64 to 128"]
    assert qkv.flops == pytest.approx(layers * rows * 2 * 64 * 128)
    assert qkv.calls == pytest.approx(layers)
    assert not engine.has_unfinished()


def test_parts_add_up(engine: Engine) -> None:
    """Ops and what is outside them are the step; without profile the forward pass stays whole and no op is listed."""
    profiled = measure(engine, StepMix(4, 10), steps=9, limits=LIMITS)
    assert sum(profiled.outside.values()) + profiled.kernels_s == pytest.approx(profiled.step_s)
    assert all(seconds >= 0 for seconds in profiled.outside.values())
    plain = measure(engine, StepMix(4, 10), steps=9)
    assert plain.ops == []
    assert len(plain.seconds) == 9
    assert plain.seconds == sorted(plain.seconds)


@pytest.mark.parametrize(
    ("mix", "flag"),
    [
        (StepMix(9, 10), "--max-num-seqs"),
        (StepMix(8, 10, 5), "--max-num-seqs"),
        (StepMix(4, 10, 61), "--max-num-batched-tokens"),
        (StepMix(1, 256), "--max-model-len"),
        (StepMix(2, 240), "--max-model-len"),
    ],
    ids=str,
)
def test_a_mix_without_room_is_refused(engine: Engine, mix: StepMix, flag: str) -> None:
    """The message names the knob, also when requests outgrow the context while they are measured."""
    with pytest.raises(ConfigError, match=flag):
        measure(engine, mix, steps=20)


def test_a_pool_that_is_too_small_is_named(tiny_model: Path) -> None:
    """Requests that would have to be preempted are no steady mix."""
    engine = engine_of(tiny_model, num_kv_blocks=16, kv_cache_memory=None)
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        measure(engine, StepMix(4, 60), steps=20)
    engine.close()


def test_the_reference_has_no_bound(tiny_model: Path) -> None:
    """A profile needs native kernels; the message says what runs instead."""
    engine = engine_of(tiny_model, backend="reference")
    with pytest.raises(ConfigError, match="reference"):
        probe(engine)
    engine.close()


def test_a_profile_is_held_against_the_best_probe(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be slower while probed before than it is after, or the other way round."""
    found = [MachineLimits(1e9, 2e9, 1e9)] * 3 + [MachineLimits(5e8, 1e9, 3e9)] * 3
    monkeypatch.setattr(runner_of(engine).ops, "measure_limits", lambda: found.pop(0))
    _, limits = profile(engine, StepMix(2, 10), steps=2)
    assert limits == MachineLimits(flops=1e9, int8_ops=2e9, read_bytes=3e9)
    assert found == []


def test_bounds_and_rates_are_told(engine: Engine) -> None:
    """The table has a row per op and a line per part; JSON repeats the numbers as they are."""
    report = measure(engine, StepMix(2, 10), steps=4, limits=LIMITS)
    table = text(report, 2)
    assert all(op.name in table for op in report.ops)
    assert all(f"  {part} " in table for part in report.outside)
    assert "kernels busy" in table
    again = json.loads(json.dumps(document(report, LIMITS)))
    assert again["ops"][0]["seconds"] == report.ops[0].seconds
    assert again["machine"]["flops"] == LIMITS.flops


def test_a_report_counts_threads(engine: Engine) -> None:
    """Busy time of a step is shared out over the threads."""
    report = measure(engine, StepMix(2, 10), steps=4, limits=LIMITS)
    assert isinstance(report, StepReport)
    assert 0 < report.busy_s <= report.kernels_s * 64
    assert report.least_s > 0
