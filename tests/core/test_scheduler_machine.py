"""Any order of arrivals, steps and aborts, for any budget, block size, pool, with and without cache and drafts.

Whatever happens to a request on its way, it must say what it says when it runs alone.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.config import SchedulerConfig
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler
from chairlift.errors import PoolTooSmallError
from chairlift.sampling_params import SamplingParams
from core.fake_runner import EOS, FakeRunner, Lift, alone

MAX_MODEL_LEN = 60
PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=40)  # few ids: many prompts share a beginning


@st.composite
def sampling_params(draw):
    max_tokens = draw(st.integers(0, 20))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.lists(st.integers(1, 10), max_size=1)),
        prompt_logprobs=draw(st.sampled_from([None, None, 0])),
    )


class SchedulerMachine(RuleBasedStateMachine):
    """The scheduler and the fake runner under random traffic."""

    @initialize(
        budget=st.sampled_from([1, 2, 3, 4, 7, 16, 40, 200]),
        seqs=st.integers(1, 6),
        block_size=st.sampled_from([1, 2, 4, 16]),
        pool_tokens=st.sampled_from([16, 32, 48, 64, 100, 400]),
        cache=st.booleans(),
        drafts=st.sampled_from([0, 0, 1, 4]),
    )
    def start(self, budget, seqs, block_size, pool_tokens, cache, drafts):
        scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget),
            num_blocks=pool_tokens // block_size,
            block_size=block_size,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=cache,
        )
        self.lift = Lift(scheduler, FakeRunner(block_size, drafts))
        self.expected = {}
        self.aborted = {}  # id -> number of results when it was aborted
        self.in_flight = None
        self.count = 0

    def teardown(self):
        if not hasattr(self, "lift"):
            return
        if self.in_flight is not None:
            self.finish_step()
        self.lift.run(max_steps=self.most_steps())
        for request_id, (output, reason, num_prompt_logprobs) in self.expected.items():
            if request_id in self.aborted:
                assert len(self.lift.results.get(request_id, [])) == self.aborted[request_id]
                continue
            assert self.lift.outputs[request_id] == output
            assert self.lift.finish[request_id] == reason
            assert len(self.lift.prompt_logprobs.get(request_id, ())) == num_prompt_logprobs
        stats = self.lift.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert self.lift.scheduler.blocks.pool.num_used == 0
        assert self.lift.runner.rows == {}

    def most_steps(self):
        """One request after the other, a token a step, each thrown out once for each older one."""
        unfinished = self.lift.scheduler.num_running + self.lift.scheduler.num_waiting
        return 10 + MAX_MODEL_LEN * unfinished * (1 + unfinished)

    @precondition(lambda self: self.count < 25)
    @rule(
        prompt=PROMPTS,
        params=sampling_params(),
        seed=st.integers(0, 5),
        resumed=st.booleans(),
        salt=st.sampled_from(["", "", "x"]),
    )
    def add(self, prompt, params, seed, resumed, salt):
        request_id, self.count = f"r{self.count}", self.count + 1
        output, reason = alone(prompt, params, seed, MAX_MODEL_LEN)
        given = output[: len(output) // 2] if resumed else []
        request = Request(
            request_id,
            prompt,
            params,
            seed=seed,
            eos_token_ids=(EOS,),
            output_token_ids=given,
            cache_salt=salt,
        )
        try:
            self.lift.add(request)
        except PoolTooSmallError:
            limits = self.lift.scheduler.limits
            assert len(prompt) + max(0, params.max_tokens - 1) > limits.num_blocks * limits.block_size
            return
        reports = params.prompt_logprobs is not None and not given
        self.expected[request_id] = output, reason, len(prompt) - 1 if reports else 0

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def begin_step(self):
        self.in_flight = self.lift.begin()

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def finish_step(self):
        scheduled, self.in_flight = self.in_flight, None
        self.lift.end(scheduled)

    @precondition(lambda self: self.in_flight is None)
    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.lift.step()

    @precondition(lambda self: len(self.expected) > 0)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(list(self.expected)))
        if self.lift.scheduler.abort(request_id):
            self.aborted[request_id] = len(self.lift.results.get(request_id, []))

    @invariant()
    def holds_together(self):
        if hasattr(self, "lift"):
            self.lift.scheduler.check_integrity()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
