"""The bound of a whole workload: the least time that its arithmetic and its reads take on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chairlift.bench.step import runner_of
from chairlift.bench.workload import WorkItem
from chairlift.engine.engine import Engine
from chairlift.ops.interface import MachineLimits, OpWork, RaggedBatch
from chairlift.runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class WorkloadBound:
    """What the requests of a workload can't do without, however they are scheduled."""

    num_requests: int
    num_output_tokens: int
    flops: float  # f32
    int8_ops: float
    num_bytes: float  # weights once a step, of as few steps as there can be; K and V once for each token that is drawn
    arithmetic_s: float
    reading_s: float

    @property
    def least_s(self) -> float:
        """No schedule and no kernel is faster."""
        return max(self.arithmetic_s, self.reading_s)

    @property
    def output_tokens_per_s(self) -> float:
        """At most."""
        return self.num_output_tokens / self.least_s


def workload_bound(engine: Engine, items: Sequence[WorkItem], limits: MachineLimits) -> WorkloadBound:
    """Add up what each request's rows ask for; nothing is computed. The requests may all run at once.

    Raises:
        ConfigError: the engine has no runner of a model.
        ValueError: a request is longer than the engine's context.
    """
    runner, info = runner_of(engine), engine.info
    chunk, size = info.max_num_batched_tokens, info.block_size
    work = [each for item in items for batch in _chunks(item, chunk, size) for each in _work(runner, batch)]
    flops, int8_ops = sum(each.flops for each in work), sum(each.int8_ops for each in work)

    bytes_at = [sum(op.num_bytes for op in _work(runner, _rows(0, n, 0, size))) for n in (1, 2)]
    token_bytes = bytes_at[1] - bytes_at[0]  # K and V; the rest are weights
    num_rows = sum(_num_rows(item) for item in items)
    num_steps = max(-(-num_rows // chunk), *(item.max_tokens for item in items))
    tokens_read = sum(
        item.max_tokens * len(item.prompt_token_ids) + item.max_tokens * (item.max_tokens - 1) // 2
        for item in items
    )
    num_bytes = num_steps * (bytes_at[0] - token_bytes) + tokens_read * token_bytes
    return WorkloadBound(
        num_requests=len(items),
        num_output_tokens=sum(item.max_tokens for item in items),
        flops=flops,
        int8_ops=int8_ops,
        num_bytes=num_bytes,
        arithmetic_s=flops / limits.flops + int8_ops / limits.int8_ops,
        reading_s=num_bytes / limits.read_bytes,
    )


def _num_rows(item: WorkItem) -> int:
    """The last token is drawn, but never computed."""
    return len(item.prompt_token_ids) + item.max_tokens - 1


def _work(runner: ModelRunner, batch: RaggedBatch) -> list[OpWork]:
    return runner.program.work(runner.ops.upload_batch(batch))


def _chunks(item: WorkItem, longest: int, block_size: int) -> Iterator[RaggedBatch]:
    """All rows of a request, so many at a time."""
    total = _num_rows(item)
    for start in range(0, total, longest):
        end = min(total, start + longest)
        yield _rows(start, end, len(item.prompt_token_ids) - 1, block_size)


def _rows(start: int, end: int, first_logits: int, block_size: int) -> RaggedBatch:
    """Rows [start, end) of one request, which draws a token from row `first_logits` on."""
    positions = np.arange(start, end, dtype=np.int32)
    return RaggedBatch(
        input_ids=np.zeros(end - start, np.int32),
        positions=positions,
        query_start_loc=np.array([0, end - start], np.int32),
        seq_lens=np.array([end], np.int32),
        block_tables=np.zeros((1, -(-end // block_size)), np.int32),
        slot_mapping=np.zeros(end - start, np.int64),
        logits_indices=np.flatnonzero(positions >= first_logits).astype(np.int32),
    )
