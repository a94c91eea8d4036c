"""`bench step`: a steady step of a given mix, where its time goes, and how far its ops are from the machine's bound."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count

from chairlift.bench.workload import FIRST_PLAIN_ID
from chairlift.engine.engine import Engine
from chairlift.engine.types import EngineRequest, StepFrame
from chairlift.engine.wire import FrameEncoder
from chairlift.errors import ConfigError
from chairlift.ops.interface import MachineLimits, OpSeconds, OpWork
from chairlift.runner.model_runner import ModelRunner
from chairlift.sampling_params import SamplingParams

_WARMUP_STEPS = 4
_PROBES = 3  # the best counts: others may use the machine meanwhile


@dataclass(frozen=True, slots=True)
class StepMix:
    """What every measured step computes: a token for each running request, and a prompt beside them."""

    running: int
    context: int  # tokens that a running request holds, at least: those that board first hold a few more
    prompt_tokens: int = 0  # of a prompt that boards, is computed whole and leaves, a new one in every step

    def __str__(self) -> str:
        beside = f", and a prompt of {self.prompt_tokens}" if self.prompt_tokens else ""
        return f"{self.running} running, {self.context} tokens each{beside}"


@dataclass(slots=True)
class OpShare:
    """All ops of one kind and shape, in one step."""

    name: str
    calls: float = 0
    seconds: float = 0
    busy_seconds: float = 0  # of all threads in tiles
    flops: float = 0
    int8_ops: float = 0
    num_bytes: float = 0
    least_seconds: float = 0  # the sum of the ops' bounds


@dataclass(frozen=True, slots=True)
class StepReport:
    """`step_s` and its parts are means over the middle half of the steps by duration, so that they add up."""

    mix: StepMix
    seconds: list[float]  # of every step, ascending
    step_s: float
    ops: list[OpShare]  # the longest first; empty without profile
    outside: dict[str, float]  # seconds by part: everything but the ops

    @property
    def kernels_s(self) -> float:
        """Wall time inside ops."""
        return sum(op.seconds for op in self.ops)

    @property
    def busy_s(self) -> float:
        """Time in tiles, added up over the threads."""
        return sum(op.busy_seconds for op in self.ops)

    @property
    def least_s(self) -> float:
        """What the ops would take at the machine's bounds."""
        return sum(op.least_seconds for op in self.ops)


def probe(engine: Engine) -> MachineLimits:
    """What this machine can do at most, with the engine's threads and instructions.

    Raises:
        ConfigError: the engine does not run on native kernels, whose time would mean something.
    """
    found = [runner_of(engine).ops.measure_limits() for _ in range(_PROBES)]
    limits = [each for each in found if each is not None]
    if not limits:
        raise ConfigError(f"--profile needs the native kernels; this engine runs on {engine.info.backend}")
    return _best(limits)


def _best(limits: Sequence[MachineLimits]) -> MachineLimits:
    return MachineLimits(
        flops=max(each.flops for each in limits),
        int8_ops=max(each.int8_ops for each in limits),
        read_bytes=max(each.read_bytes for each in limits),
    )


def measure(engine: Engine, mix: StepMix, *, steps: int, limits: MachineLimits | None = None) -> StepReport:
    """Bring the mix about and measure `steps` steps of it; with `limits`, op by op.

    Raises:
        ConfigError: the engine's limits leave no room for the mix.
    """
    return _report(mix, _measured(engine, mix, steps, limits is not None), limits)


def profile(engine: Engine, mix: StepMix, *, steps: int) -> tuple[StepReport, MachineLimits]:
    """`measure` with the best of the bounds probed before and after: the memory of a shared machine is not steady.

    Raises:
        ConfigError: as `probe` and `measure`.
    """
    before = probe(engine)
    measured = _measured(engine, mix, steps, True)
    limits = _best([before, probe(engine)])
    return _report(mix, measured, limits), limits


def _measured(engine: Engine, mix: StepMix, steps: int, profiled: bool) -> list[_Step]:
    runner = runner_of(engine)
    driver = _Driver(engine, mix)
    measured = []
    try:
        driver.fill()
        for _ in range(_WARMUP_STEPS):
            driver.step()
        for _ in range(steps):
            runner.profile = [] if profiled else None
            measured.append(_Step(driver.timed_step(), runner.profile or []))
    finally:
        runner.profile = None
        driver.leave()
    return measured


@dataclass(frozen=True, slots=True)
class _Step:
    parts: dict[str, float]  # seconds by part, the forward pass included
    ops: list[tuple[OpWork, OpSeconds]]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


class _Driver:
    """Keeps an engine in one mix. No two prompts begin alike, so the prefix cache finds nothing."""

    def __init__(self, engine: Engine, mix: StepMix) -> None:
        self._engine = engine
        self._mix = mix
        self._rng = random.Random()  # not seeded: a second measurement must find nothing cached, either
        self._ids = count()
        self._running: list[str] = []
        self._encode = FrameEncoder().encode
        rows, seats = mix.running + mix.prompt_tokens, mix.running + (mix.prompt_tokens > 0)
        for flag, needed, limit in (
            ("--max-num-batched-tokens", rows, engine.info.max_num_batched_tokens),
            ("--max-num-seqs", seats, engine.info.max_num_seqs),
            ("--max-model-len", max(mix.context, mix.prompt_tokens) + 1, engine.info.max_model_len),
        ):
            if needed > limit:
                raise ConfigError(f"{mix}: {flag} must be at least {needed}; it is {limit}")

    def fill(self) -> None:
        """Prefill the running requests."""
        room = self._engine.info.max_model_len - self._mix.context
        self._running = [self._add(self._mix.context, room) for _ in range(self._mix.running)]
        while self._running:
            rows = self._checked(self._engine.step()).rows
            if len(rows) == len(self._running) and all(row.num_scheduled_tokens == 1 for row in rows):
                return

    def step(self) -> StepFrame:
        """One step of the mix."""
        if self._mix.prompt_tokens:
            self._add(self._mix.prompt_tokens, 1)
        frame = self._checked(self._engine.step())
        rows = sum(row.num_scheduled_tokens for row in frame.rows)
        if rows != self._mix.running + self._mix.prompt_tokens:
            raise ConfigError(
                f"{self._mix}: a step computed {rows} tokens, since requests reached the end of the context; "
                "raise --max-model-len or lower --steps"
            )
        return frame

    def timed_step(self) -> dict[str, float]:
        """Seconds of a step by part; what a profile costs is no part."""
        started = time.perf_counter()
        frame = self.step()
        stepped = time.perf_counter()
        self._encode(frame)
        encoded = time.perf_counter()
        stats = frame.stats
        return {
            "schedule": stats.schedule_s,
            "prepare": stats.prepare_s,
            "upload": stats.upload_s,
            "forward": stats.forward_s,
            "sample": stats.sample_s,
            "update": stats.update_s,
            "frame": stepped - started - stats.schedule_s - stats.execute_s - stats.update_s,
            "encode": encoded - stepped,
        }

    def leave(self) -> None:
        """Drop the running requests, so that the engine is free for another mix."""
        self._engine.abort(self._running)
        self._engine.step()

    def _add(self, prompt: int, answer: int) -> str:
        request_id = str(next(self._ids))
        ids = [self._rng.randrange(FIRST_PLAIN_ID, self._engine.info.vocab_size) for _ in range(prompt)]
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True, detokenize=False)
        self._engine.add_request(EngineRequest(request_id, ids, params, seed=0))
        return request_id

    def _checked(self, frame: StepFrame | None) -> StepFrame:
        refused = [update.error for update in frame.updates if update.error] if frame else []
        if frame is None or refused or frame.preempted:
            why = refused[0] if refused else "the KV pool is too small; raise --kv-cache-memory"
            raise ConfigError(f"{self._mix}: {why}")
        return frame


def runner_of(engine: Engine) -> ModelRunner:
    """The runner of an engine that runs a model; raises ConfigError for another."""
    if not isinstance(engine.runner, ModelRunner):
        raise ConfigError(f"only steps of a model's runner can be measured, not of {engine.runner!r}")
    return engine.runner


def _report(mix: StepMix, measured: Sequence[_Step], limits: MachineLimits | None) -> StepReport:
    ordered = sorted(measured, key=lambda step: step.seconds)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    step_s = sum(step.seconds for step in middle) / len(middle)
    outside = {part: sum(step.parts[part] for step in middle) / len(middle) for part in middle[0].parts}
    ops = _shares(middle, limits) if limits else []
    # What the call that replays the ops takes beside them; without profile, nothing tells it from the ops.
    replay = outside.pop("forward") - sum(op.seconds for op in ops)
    if limits:
        outside["replay"] = replay
    return StepReport(mix, [step.seconds for step in ordered], step_s, ops, outside)


def _shares(steps: Sequence[_Step], limits: MachineLimits) -> list[OpShare]:
    shares: dict[str, OpShare] = {}
    part = 1 / len(steps)
    for work, (seconds, busy_seconds) in chain.from_iterable(step.ops for step in steps):
        share = shares.setdefault(work.name, OpShare(work.name))
        share.calls += part
        share.seconds += seconds * part
        share.busy_seconds += busy_seconds * part
        share.flops += work.flops * part
        share.int8_ops += work.int8_ops * part
        share.num_bytes += work.num_bytes * part
        share.least_seconds += work.least_seconds(limits) * part
    return sorted(shares.values(), key=lambda share: -share.seconds)
