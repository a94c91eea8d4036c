"""A tiny random Llama, and a hand-driven scheduler: tests say which request gets how many tokens in which step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chairlift.core.messages import (
    ModelRunnerOutput,
    NewRequest,
    Preemption,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)
from chairlift.model.llama import Llama
from chairlift.model.spec import ModelSpec
from chairlift.ops.interface import HostTensor, Ops
from chairlift.runner.model_runner import ModelRunner
from chairlift.sampling_params import SamplingParams
from model.tiny_models import TinyModel
from ops.backends import MakeOps

MAX_LEN = 96
VOCAB_SIZE = 128


class TensorSource:
    """A `WeightSource` of tensors in memory."""

    path = Path("tiny")

    def __init__(self, tensors: Mapping[str, HostTensor]) -> None:
        self._tensors = tensors

    def names(self) -> Sequence[str]:
        return list(self._tensors)

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        assert self._tensors[name].shape == shape
        return self._tensors[name]


def tiny_llama(ops: Ops, **sizes: Any) -> Llama:
    """A random model on the given ops."""
    tiny = TinyModel(vocab_size=VOCAB_SIZE, **sizes)
    spec = ModelSpec(
        architecture="llama",
        vocab_size=tiny.vocab_size,
        hidden_size=tiny.hidden_size,
        intermediate_size=tiny.intermediate_size,
        num_layers=tiny.num_layers,
        num_heads=tiny.num_heads,
        num_kv_heads=tiny.num_kv_heads,
        head_dim=tiny.head_dim,
        max_positions=MAX_LEN,
        rms_norm_eps=1e-5,
    )
    return Llama(spec, TensorSource(tiny.weights), ops, MAX_LEN)


@dataclass
class Rider:
    """One request as the driver knows it."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    seed: int
    tokens: list[int] = field(default_factory=list)  # prompt and output
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def missing(self) -> int:
        """Tokens without KV."""
        return len(self.tokens) - self.computed

    @property
    def result(self) -> tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]:
        """Everything that must be the same whatever the traffic."""
        return self.output, self.logprobs, self.prompt_logprobs


class Lift:
    """Drives a `ModelRunner` step by step, with a block pool of its own."""

    def __init__(
        self, make_ops: MakeOps, *, block_size: int = 16, num_blocks: int = 80, max_num_seqs: int = 8
    ) -> None:
        ops = make_ops(256, 256)
        model = tiny_llama(ops)
        kv = ops.allocate_kv_cache(model.kv_cache_spec(num_blocks, block_size, "f16"))
        self.runner = ModelRunner(
            model, ops, kv, block_size=block_size, max_num_seqs=max_num_seqs, max_model_len=MAX_LEN
        )
        self.block_size = block_size
        self.riders: dict[str, Rider] = {}
        self._free = [(7 * block) % num_blocks for block in range(num_blocks)]  # scattered
        self._aboard: set[str] = set()
        self._left: list[str] = []
        self._preempted: list[Preemption] = []
        self._steps = 0

    def ask(self, request_id: str, prompt: Sequence[int], seed: int = 0, **params: Any) -> Rider:
        """A request that waits; `params` are those of SamplingParams."""
        params = {"max_tokens": 8, "temperature": 1.0, **params}
        rider = Rider(request_id, list(prompt), SamplingParams(**params), seed, tokens=list(prompt))
        self.riders[request_id] = rider
        return rider

    def step(self, share: Mapping[str, int]) -> ModelRunnerOutput:
        """Compute so many rows of each request (drafts included), boarding those that are not aboard."""
        step = SchedulerOutput(
            self._steps, finished_request_ids=self._left, preempted=self._preempted, block_copies=[]
        )
        self._steps += 1
        self._left, self._preempted = [], []
        for request_id, count in share.items():
            self._schedule(step, self.riders[request_id], count)
        output = self.runner.execute(step)
        for request_id, count in share.items():
            self._update(self.riders[request_id], count, output)
        return output

    def run(self, budget: int = 64, order: Sequence[str] | None = None) -> None:
        """Serve all riders to their max_tokens, chunking prompts to what the budget leaves."""
        while going := [r for r in (order or list(self.riders)) if self.goes_on(self.riders[r])]:
            left, share = budget, {}
            for request_id in sorted(going, key=lambda r: self.riders[r].missing > 1):
                count = min(left, self.riders[request_id].missing)
                if count:
                    share[request_id], left = count, left - count
            self.step(share)
            for request_id in list(self._aboard):
                if not self.goes_on(self.riders[request_id]):
                    self.leave(request_id)

    def leave(self, request_id: str) -> None:
        """The request ended: its row and blocks are free."""
        self._drop(request_id)
        self._left.append(request_id)

    def preempt(self, request_id: str) -> None:
        """The request loses its blocks and waits again."""
        rider = self.riders[request_id]
        self._preempted.append(Preemption(request_id, "a test says so", rider.computed))
        self._drop(request_id)
        rider.computed = 0

    def goes_on(self, rider: Rider) -> bool:
        """Whether it still wants tokens."""
        return len(rider.output) < (rider.params.max_tokens or 0)

    def _drop(self, request_id: str) -> None:
        self._aboard.discard(request_id)
        self._free = self.riders[request_id].blocks + self._free  # reused first: full of old values
        self.riders[request_id].blocks = []

    def _schedule(self, step: SchedulerOutput, rider: Rider, count: int) -> None:
        need = -(-(rider.computed + count) // self.block_size) - len(rider.blocks)
        new_blocks, self._free = self._free[: max(0, need)], self._free[max(0, need) :]
        rider.blocks += new_blocks
        boards = rider.request_id not in self._aboard
        if boards:
            self._aboard.add(rider.request_id)
            step.new_requests.append(
                NewRequest(
                    *(rider.request_id, list(rider.tokens), len(rider.prompt), rider.params, rider.seed, 0),
                    block_ids=list(rider.blocks),
                    num_computed_tokens=rider.computed,
                    eos_token_ids=(2,),
                )
            )
        step.scheduled.append(
            ScheduledRequest(
                rider.request_id, count, rider.computed, () if boards else tuple(new_blocks), rider.drafts
            )
        )

    def _update(self, rider: Rider, count: int, output: ModelRunnerOutput) -> None:
        sampled = output.sampled_token_ids.get(rider.request_id, [])
        start = rider.computed
        rider.computed += count - (len(rider.drafts) + 1 - len(sampled) if rider.drafts else 0)
        rider.drafts = ()
        rider.tokens += sampled
        rider.logprobs += output.logprobs.get(rider.request_id, [])
        entries = output.prompt_logprobs.get(rider.request_id, [])
        rider.prompt_logprobs += entries[max(0, len(rider.prompt_logprobs) - start) :]
