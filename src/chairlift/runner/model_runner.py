"""The runner: one forward pass and one draw for whatever the scheduler decided, requests in any state side by side."""

from __future__ import annotations

from chairlift.core.messages import ModelRunnerOutput, SchedulerOutput
from chairlift.model.base import Model
from chairlift.ops.interface import KVCache, Ops
from chairlift.runner.batch import build_step
from chairlift.runner.rows import RequestRows
from chairlift.runner.sampler import build_sample_batch, take_result


class ModelRunner:
    """`core.ports.Runner` over a model and the ops it was built with.

    It appends what it samples to its own copy of each request's tokens, so a step's message carries ids and counts.
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
    ) -> None:
        self._ops = ops
        self._kv = kv
        self._forward = ops.capture(lambda batch: model.forward(batch, kv))
        self._rows = RequestRows(max_num_seqs, max_model_len, block_size)

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; raises ValueError when it contradicts what this runner was told before."""
        rows = self._rows
        rows.free(scheduled.finished_request_ids)
        rows.free(preemption.request_id for preemption in scheduled.preempted)
        for new in scheduled.new_requests:
            rows.add(new)
        if scheduled.block_copies:
            self._ops.copy_blocks(self._kv, scheduled.block_copies)
        if scheduled.is_empty:
            return ModelRunnerOutput()
        step = build_step(scheduled.scheduled, rows)
        batch = self._ops.upload_batch(step.ragged)
        logits = self._forward.run(batch)
        if not len(step.ragged.logits_indices):
            return ModelRunnerOutput()
        asked = build_sample_batch(step, rows)
        return take_result(self._ops.sample(batch, logits, asked), asked, step, rows)

    def close(self) -> None:
        """Stop the worker threads of the ops."""
        self._ops.close()
