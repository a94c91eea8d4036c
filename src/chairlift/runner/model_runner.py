"""The runner: one forward pass and one draw for whatever the scheduler decided, requests in any state side by side."""

from __future__ import annotations

import time
from collections.abc import Callable

from chairlift.core.messages import ModelRunnerOutput, SchedulerOutput
from chairlift.model.base import Model
from chairlift.ops.interface import KVCache, Ops, OpSeconds, OpWork
from chairlift.runner.batch import build_step
from chairlift.runner.rows import RequestRows
from chairlift.runner.sampler import build_sample_batch, take_result


class ModelRunner:
    """`core.ports.Runner` over a model and the ops it was built with.

    It appends what it samples to its own copy of each request's tokens, so a step's message carries ids and counts.
    Give `profile` a list, and every step appends what each of its ops had to do, and what that took.
    """

    def __init__(
        self,
        model: Model,
        ops: Ops,
        kv: KVCache,
        *,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.profile: list[tuple[OpWork, OpSeconds]] | None = None
        self._clock = clock
        self.ops = ops
        self._kv = kv
        self.program = ops.capture(lambda batch: model.forward(batch, kv))
        self._rows = RequestRows(max_num_seqs, max_model_len, block_size)

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; raises ValueError when it contradicts what this runner was told before."""
        started = self._clock()
        rows = self._rows
        rows.free(scheduled.finished_request_ids)
        rows.free(preemption.request_id for preemption in scheduled.preempted)
        for new in scheduled.new_requests:
            rows.add(new)
        if scheduled.block_copies:
            self.ops.copy_blocks(self._kv, scheduled.block_copies)
        if scheduled.is_empty:
            return ModelRunnerOutput()
        step = build_step(scheduled.scheduled, rows)
        asked = build_sample_batch(step, rows)
        prepared = self._clock()
        batch = self.ops.upload_batch(step.ragged)
        uploaded = self._clock()
        times: list[OpSeconds] | None = None if self.profile is None else []
        logits = self.program.run(batch, times)
        computed = self._clock()
        if len(asked.rows):
            output = take_result(self.ops.sample(batch, logits, asked), asked, step, rows)
        else:
            output = ModelRunnerOutput()
        output.prepare_s, output.upload_s = prepared - started, uploaded - prepared
        output.forward_s, output.sample_s = computed - uploaded, self._clock() - computed
        if self.profile is not None and times is not None:
            self.profile += zip(self.program.work(batch), times, strict=True)
        return output

    def close(self) -> None:
        """Stop the worker threads of the ops."""
        self.ops.close()
