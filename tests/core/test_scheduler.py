"""Decisions of the scheduler, one at a time; `test_scheduler_machine.py` tries everything at once."""

from random import Random

import pytest

from chairlift.config import SchedulerConfig
from chairlift.core.messages import ModelRunnerOutput
from chairlift.core.policy import FcfsPolicy
from chairlift.core.request import Request
from chairlift.core.scheduler import Scheduler, prefill_floor
from chairlift.errors import (
    ContextLengthError,
    InvalidParameterError,
    PoolTooSmallError,
    ServerError,
)
from chairlift.sampling_params import SamplingParams
from core.fake_runner import EOS, FakeRunner, Lift, alone

BLOCK = 16


def make_lift(*, budget=256, seqs=64, blocks=10_000, ctx=8192, drafts=0, cache=True, block=BLOCK):
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget),
        num_blocks=blocks,
        block_size=block,
        max_model_len=ctx,
        enable_prefix_caching=cache,
    )
    return Lift(scheduler, FakeRunner(block, drafts))


def ids(n, start=0):
    """A prompt of n tokens; another `start` gives another prompt from the first token on."""
    return [1 + (start * 7 + i * i + i * start) % 10 for i in range(n)]


def make_request(request_id, prompt, *, seed=0, output=(), salt="", **params):
    params = {"max_tokens": 8, "ignore_eos": True, **params}
    return Request(
        request_id,
        prompt,
        SamplingParams(**params),
        seed=seed,
        eos_token_ids=(EOS,),
        output_token_ids=output,
        cache_salt=salt,
    )


def expected(request, ctx=8192):
    prompt = request.token_ids[: request.num_prompt_tokens]
    return alone(prompt, request.sampling_params, request.seed, ctx)


def shares(scheduled):
    return {share.request_id: share.num_scheduled_tokens for share in scheduled.scheduled}


# -- one rule ----------------------------------------------------------------------------------------------------


def test_prefill_chunks_and_decodes_share_a_step():
    """A long prompt is computed in chunks beside a running stream, which gets its token in every step."""
    lift = make_lift(budget=32)
    a = lift.add(make_request("a", ids(4)))
    assert shares(lift.step()) == {"a": 4}
    b = lift.add(make_request("b", ids(70, 1)))
    assert [shares(lift.step()) for _ in range(4)] == [
        {"a": 1, "b": 31},
        {"a": 1, "b": 31},
        {"a": 1, "b": 8},
        {"a": 1, "b": 1},
    ]
    lift.run()
    assert lift.outputs == {"a": expected(a)[0], "b": expected(b)[0]}


def test_new_requests_are_told_in_full_and_old_ones_in_numbers():
    """The runner hears tokens and block table once, and later only what is added."""
    lift = make_lift()
    lift.add(make_request("a", ids(20), max_tokens=20))
    first = lift.step()
    (new,) = first.new_requests
    assert (new.token_ids, new.num_prompt_tokens, new.num_computed_tokens) == (ids(20), 20, 0)
    assert len(new.block_ids) == 2
    assert first.scheduled[0].new_block_ids == ()
    steps = [lift.step() for _ in range(13)]
    assert all(not step.new_requests for step in steps)
    assert [i for i, step in enumerate(steps) if step.scheduled[0].new_block_ids] == [12]


def test_an_idle_scheduler_plans_an_empty_step():
    """With nothing to do there are no rows; the last rows to free are still told, once."""
    lift = make_lift()
    assert lift.step().is_empty
    assert not lift.scheduler.has_work()
    lift.add(make_request("a", ids(4), max_tokens=1))
    lift.step()
    assert not lift.scheduler.has_unfinished()
    assert lift.scheduler.has_work()
    assert lift.step().finished_request_ids == ["a"]
    assert not lift.scheduler.has_work()


@pytest.mark.parametrize(
    ("budget", "floor"), [(1, 1), (2, 1), (3, 2), (16, 8), (32, 16), (64, 16), (256, 64)]
)
def test_the_floor_is_a_quarter_at_least_16_at_most_half(budget, floor):
    """The promise to the oldest prefill, for small and large budgets."""
    assert prefill_floor(budget) == floor


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 16, 17, 64])
def test_with_any_budget_everyone_ends_and_every_stream_flows(budget):
    """Streams never skip a step, and the oldest prefill gets its floor unless they leave it less."""
    lift = make_lift(budget=budget, seqs=32)
    requests = [
        lift.add(make_request(f"r{i}", ids(3 + 11 * (i % 9), i), max_tokens=5 + i))
        for i in range(9 if budget < 16 else 40)
    ]
    while lift.scheduler.has_work():
        decoding = [r for r in requests if r.status.value == "running" and r.num_uncomputed_tokens == 1]
        prefilling = [r for r in requests if r.status.value == "running" and r.num_uncomputed_tokens > 1]
        left = prefilling[0].num_uncomputed_tokens if prefilling else 0
        got = shares(lift.step())
        assert sum(got.values()) <= budget
        assert all(got[r.request_id] == 1 for r in decoding)
        if prefilling:
            assert got[prefilling[0].request_id] >= min(left, prefill_floor(budget), budget - len(decoding))
    assert lift.outputs == {r.request_id: expected(r)[0] for r in requests}


def test_the_running_set_is_bounded():
    """Neither max_num_seqs nor the budget is exceeded by the number of running requests."""
    for budget, seqs in ((4, 8), (8, 4)):
        lift = make_lift(budget=budget, seqs=seqs)
        for i in range(12):
            lift.add(make_request(f"r{i}", ids(1)))
        lift.step()
        assert lift.scheduler.num_running == 4
        assert lift.scheduler.num_waiting == 8
        lift.run()


# -- B01: what can never run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_prompt", [400, 256, 250])
def test_b01_an_impossible_request_is_refused_and_blocks_nobody(num_prompt):
    """A request larger than the pool is refused at once; a small one after it runs; nothing stays queued."""
    lift = make_lift(blocks=16, ctx=1024)
    with pytest.raises(PoolTooSmallError):
        lift.scheduler.add_request(make_request("big", ids(num_prompt)))
    small = lift.add(make_request("small", ids(1)))
    lift.run()
    assert lift.outputs["small"] == expected(small)[0]
    assert lift.scheduler.num_waiting == 0


@pytest.mark.parametrize("num_prompt", [249, 241, 240])
def test_b01_a_request_as_large_as_the_pool_runs(num_prompt):
    """At the edge of the pool a request alone ends, also when others came first."""
    lift = make_lift(blocks=16, ctx=1024)
    lift.add(make_request("first", ids(30, 2)))
    edge = lift.add(make_request("edge", ids(num_prompt)))
    lift.run()
    assert lift.outputs["edge"] == expected(edge)[0]


def test_refusals_change_nothing():
    """Too long, a duplicate id, nothing left to generate: each has its error and leaves no trace."""
    lift = make_lift(ctx=100)
    lift.add(make_request("a", ids(4)))
    for error, request in (
        (ContextLengthError, make_request("b", ids(100))),
        (InvalidParameterError, make_request("a", ids(4))),
        (InvalidParameterError, make_request("b", [])),
        (InvalidParameterError, make_request("b", ids(4), output=[1] * 8)),
    ):
        with pytest.raises(error):
            lift.scheduler.add_request(request)
    lift.scheduler.check_integrity()
    assert lift.scheduler.num_waiting == 1


# -- B03: nobody starves -----------------------------------------------------------------------------------------


def test_b03_a_long_prefill_stops_no_stream_and_no_newcomer():
    """During a 6000-token prefill a stream gets a token a step, and a late short request answers long before."""
    lift = make_lift(budget=256)
    lift.add(make_request("stream", ids(5), max_tokens=150))
    for _ in range(10):
        lift.step()
    lift.add(make_request("long", ids(6000, 1), max_tokens=1))
    for _ in range(3):
        assert shares(lift.step())["stream"] == 1
    lift.add(make_request("late", ids(2, 2), max_tokens=4))
    start = len(lift.steps)
    for _ in range(4):
        assert shares(lift.step())["stream"] == 1
    assert "late" in lift.finish
    while "long" not in lift.finish:
        assert shares(lift.step())["stream"] == 1
    assert 15 < len(lift.steps) - start < 6000 / 200


@pytest.mark.parametrize("newcomers_a_step", [1, 2, 4])
def test_b03_a_flood_of_short_requests_does_not_starve_a_long_prefill(newcomers_a_step):
    """With newcomers at every step the long prompt still gets its floor, and ends in time."""
    lift = make_lift(budget=256)
    lift.add(make_request("long", ids(6000, 1), max_tokens=1))
    count = 0
    while "long" not in lift.finish:
        for _ in range(newcomers_a_step):
            lift.add(make_request(f"short{count}", ids(40, count), max_tokens=6))
            count += 1
        lift.step()
    assert len(lift.steps) <= -(-6000 // prefill_floor(256))
    waited = lift.scheduler.num_waiting
    assert len(lift.finish) > 0.8 * count
    lift.run()
    assert len(lift.finish) == count + 1
    assert waited <= 4


def test_a_short_request_behind_several_long_ones_boards_soon():
    """Long prompts board with a first chunk each, so one that waits behind them does not wait for all of them."""
    lift = make_lift(budget=256)
    for i in range(6):
        lift.add(make_request(f"long{i}", ids(3000, i)))
    lift.add(make_request("short", ids(5, 9), max_tokens=4))
    while "short" not in lift.finish:
        lift.step()
    assert len(lift.steps) < 12
    lift.run()
    ends = [lift.results[f"long{i}"][-1] for i in range(6)]
    assert all(end.finish_reason == "length" for end in ends)


def test_newcomers_do_not_crowd_out_a_prefill():
    """Nobody boards behind a prefill that has less than its floor because of streams that came before it."""
    lift = make_lift(budget=16, seqs=16)
    for i in range(12):
        lift.add(make_request(f"stream{i}", ids(1, i), max_tokens=10 + i))
    lift.step()
    lift.add(make_request("long", ids(200), max_tokens=1))
    for i in range(30):
        lift.add(make_request(f"short{i}", ids(1, i), max_tokens=20))
    got = []
    while "long" not in lift.finish:
        step = lift.step()
        got.append(shares(step)["long"])
        assert (
            not step.new_requests
            or step.new_requests[0].request_id == "long"
            or got[-1] >= 8
            or sum(got) == 200
        )
    assert got[:3] == [4, 4, 4]
    assert sum(got) == 200
    assert min(got[13:-1]) >= 8
    lift.run()


def test_a_long_newcomer_overtakes_with_its_first_tokens_only():
    """A prompt longer than what a running prefill has left boards with the floor, and then waits behind it."""
    lift = make_lift(budget=64)
    lift.add(make_request("first", ids(300)))
    lift.step()
    lift.add(make_request("second", ids(300, 1)))
    assert [shares(lift.step()) for _ in range(2)] == [{"second": 16, "first": 48}, {"first": 64}]


def test_a_prefill_that_is_nearly_done_goes_before_newcomers():
    """What needs no more than a newcomer's first tokens is served before the newcomers take those."""
    lift = make_lift(budget=64)
    lift.add(make_request("long", ids(1000)))
    lift.step()
    lift.add(make_request("short", ids(60, 1)))
    assert shares(lift.step()) == {"short": 48, "long": 16}
    for i in range(5):
        lift.add(make_request(f"other{i}", ids(2000, 2 + i)))
    assert shares(lift.step()) == {"short": 12, "other0": 16, "other1": 16, "other2": 4, "long": 16}


def test_equal_prompts_finish_in_arrival_order():
    """Among equals, first come is first served."""
    lift = make_lift(budget=64)
    for i in range(5):
        lift.add(make_request(f"r{i}", ids(500, i), max_tokens=2))
    lift.run()
    assert list(lift.finish) == [f"r{i}" for i in range(5)]


# -- B05: preemption ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [16, 64, 256])
@pytest.mark.parametrize("cache", [True, False])
def test_b05_preemption_changes_repeats_and_loses_nothing(budget, cache):
    """Eight requests that need 96 blocks run in 40: exactly their tokens, though some are preempted."""
    lift = make_lift(budget=budget, seqs=8, blocks=40, cache=cache)
    requests = [
        lift.add(make_request(f"r{i}", ids(64, i), seed=i, min_tokens=128, max_tokens=128)) for i in range(8)
    ]
    lift.run()
    assert lift.scheduler.stats().num_preemptions > 0
    for request in requests:
        assert lift.outputs[request.request_id] == expected(request)[0]
        assert len(lift.outputs[request.request_id]) == 128
        assert lift.results[request.request_id][-1].num_preemptions == request.num_preemptions
    assert lift.scheduler.blocks.pool.num_used == 0


@pytest.mark.parametrize("budget", [16, 256])
def test_b05_drafts_do_not_survive_preemption(budget):
    """A request thrown out with unverified drafts comes back without them, and says the same."""
    lift = make_lift(budget=budget, seqs=8, blocks=40, drafts=4)
    requests = [
        lift.add(make_request(f"r{i}", ids(64, i), seed=i, min_tokens=128, max_tokens=128)) for i in range(8)
    ]
    while lift.scheduler.has_work():
        for preemption in lift.step().preempted:
            victim = lift.scheduler._requests[preemption.request_id]
            assert (victim.num_computed_tokens, victim.draft_token_ids) == (0, ())
    assert lift.scheduler.stats().num_preemptions > 0
    assert lift.outputs == {r.request_id: expected(r)[0] for r in requests}


def test_a_prefill_preempts_another_that_waits_for_its_share():
    """A prefill takes the blocks of a newer one that is in line behind it: that one gets none of what is left."""
    lift = make_lift(blocks=374, budget=12, cache=False, block=1)
    requests = [lift.add(make_request(f"s{i}", ids(1 + i, i), max_tokens=60)) for i in range(5)]
    lift.step()
    lift.step()
    for i, num_prompt in enumerate([199, 52, 57]):
        requests.append(lift.add(make_request(f"r{i}", ids(num_prompt, i), max_tokens=10)))
    preempted_in_line = []
    preempt, commit = lift.scheduler._preempt, lift.scheduler._commit

    def spy_preempt(plan, victim, reason):
        if victim in plan.shortest_first:
            preempted_in_line.append(victim.request_id)
        preempt(plan, victim, reason)

    def spy_commit(plan):
        if preempted_in_line == ["r2"]:
            preempted_in_line.append(plan.left > 0)
        return commit(plan)

    lift.scheduler._preempt, lift.scheduler._commit = spy_preempt, spy_commit
    lift.run()
    assert preempted_in_line == ["r2", True]
    assert lift.outputs == {r.request_id: expected(r)[0] for r in requests}


def test_the_newest_is_preempted_and_comes_back_before_newcomers():
    """Blocks run out for an old request: the newest leaves, with the reason told, and boards again first."""
    lift = make_lift(blocks=8, seqs=2)
    old = lift.add(make_request("old", ids(48), max_tokens=70))
    new = lift.add(make_request("new", ids(40, 1), max_tokens=60))
    lift.add(make_request("next", ids(1, 2)))
    while not lift.steps or not lift.steps[-1].preempted:
        lift.step()
    (preemption,) = lift.steps[-1].preempted
    assert preemption.request_id == "new"
    assert preemption.reason == "KV blocks ran out for old"
    assert preemption.num_computed_tokens > 40
    assert "new" not in shares(lift.steps[-1])
    boarded = []
    while lift.scheduler.has_work():
        boarded += [request.request_id for request in lift.step().new_requests]
    assert boarded[:2] == ["new", "next"]
    assert lift.outputs["old"] == expected(old)[0]
    assert lift.outputs["new"] == expected(new)[0]


def test_a_victim_that_got_its_share_already_gives_it_back():
    """A decode is served, then preempted in the same step for an older prefill: its share is undone."""
    lift = make_lift(blocks=12, budget=64, seqs=4, cache=False)
    a = lift.add(make_request("a", ids(100), max_tokens=40))
    b = lift.add(make_request("b", ids(20, 1), max_tokens=100))
    victims_with_share = 0
    original = lift.scheduler._preempt

    def spy(plan, victim, reason):
        nonlocal victims_with_share
        victims_with_share += victim in plan.shares
        left = plan.left
        original(plan, victim, reason)
        assert victim not in plan.shares
        assert plan.left >= left

    lift.scheduler._preempt = spy
    # Prefer the oldest as victim, so that the one served first is the one to leave.
    lift.scheduler._policy.victims = lambda running, need, now: [r for r in running if r is not need]
    lift.run()
    assert victims_with_share > 0
    assert lift.outputs == {"a": expected(a)[0], "b": expected(b)[0]}


@pytest.mark.parametrize("steps_between", [0, 1])
def test_nobody_boards_while_blocks_are_short(steps_between):
    """A newcomer leaves every running request a block to grow, so it is not thrown out a step later."""
    lift = make_lift(blocks=6)
    lift.add(make_request("a", ids(40), max_tokens=30))
    for _ in range(steps_between):
        lift.step()
    lift.add(make_request("b", ids(33, 1), max_tokens=10))
    lift.step()
    assert (lift.scheduler.num_running, lift.scheduler.num_waiting) == (1, 1)
    lift.run()
    assert lift.scheduler.stats().num_preemptions == 0


def test_nobody_boards_in_a_step_that_ran_out_of_blocks():
    """Also under a policy that would send somebody small into the room that a victim left."""

    class SmallestFirst(FcfsPolicy):
        def order(self, waiting, now):
            return sorted(waiting, key=lambda request: request.num_tokens)

    lift = make_lift(blocks=24, seqs=6)
    lift.scheduler._policy = SmallestFirst()
    requests = [
        lift.add(make_request(f"r{i}", ids(5 + 9 * (i % 7), i), max_tokens=60 + 10 * (i % 5)))
        for i in range(30)
    ]
    lift.run()
    assert any(step.preempted for step in lift.steps)
    assert not any(step.preempted and step.new_requests for step in lift.steps)
    assert lift.outputs == {r.request_id: expected(r)[0] for r in requests}


# -- B10, B11: prefix cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 31, 32, 33, 48])
def test_b10_a_cached_prompt_gives_the_same_tokens(num_prompt):
    """Three times in a row, then three at once: equal to the cache off, and never all of the prompt cached."""
    lift = make_lift()
    output = expected(make_request("x", ids(num_prompt)))[0]
    for name in "abc":
        lift.add(make_request(name, ids(num_prompt)))
        lift.run()
    for name in "def":
        lift.add(make_request(name, ids(num_prompt)))
    lift.run()
    assert all(lift.outputs[name] == output for name in "abcdef")
    cached = [lift.results[name][-1].num_cached_tokens for name in "abcdef"]
    assert cached == [0] + [(num_prompt - 1) // BLOCK * BLOCK] * 5
    stats = lift.scheduler.stats()
    assert stats.prefix_query_tokens == 6 * num_prompt
    assert stats.prefix_hit_tokens == sum(cached)


def test_what_a_running_request_evicts_is_not_given_to_a_newcomer():
    """A newcomer's cached blocks are looked up after others were served, who may have evicted some of them."""
    lift = make_lift(blocks=11, budget=64)
    for name, num_prompt, start in (("oldest", 33, 0), ("other", 81, 1)):
        lift.add(make_request(name, ids(num_prompt, start), max_tokens=1))
        lift.run()
    assert (lift.scheduler.stats().num_cached_blocks, lift.scheduler.stats().num_free_blocks) == (7, 4)
    lift.add(make_request("running", ids(72, 2)))
    lift.step()  # takes the free blocks; the next one is evicted from what "oldest" left
    again = lift.add(make_request("again", ids(33)))
    lift.step()
    assert lift.scheduler.stats().num_evictions > 0
    assert again.num_cached_tokens == BLOCK
    lift.run()
    assert lift.outputs["again"] == expected(again)[0]


def test_generated_tokens_are_found_by_the_next_turn():
    """A prompt that holds an earlier prompt and its answer starts after both."""
    lift = make_lift()
    first = lift.add(make_request("a", ids(20), max_tokens=30))
    lift.run()
    lift.add(make_request("b", [*first.token_ids, 3, 4]))
    lift.run()
    assert lift.results["b"][-1].num_cached_tokens == 48


def test_salts_are_not_shared():
    """The same prompt under another salt is computed."""
    lift = make_lift()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x")):
        lift.add(make_request(name, ids(40), salt=salt))
        lift.run()
    assert [lift.results[name][-1].num_cached_tokens for name in "abc"] == [0, 0, 32]


@pytest.mark.parametrize("budget", [1, 16, 256])
@pytest.mark.parametrize("warm", [False, True])
def test_b11_prompt_logprobs_are_complete_whatever_the_cache_and_chunks(budget, warm):
    """Exactly one entry for each prompt token but the first, and the same ones, warm or cold, in any chunks."""
    reference = make_lift(budget=4096)
    reference.add(make_request("r", ids(40), prompt_logprobs=5))
    reference.run()
    lift = make_lift(budget=budget)
    if warm:
        lift.add(make_request("warm", ids(40), max_tokens=1))
        lift.run()
    lift.add(make_request("r", ids(40), prompt_logprobs=5))
    lift.add(make_request("one", ids(1), prompt_logprobs=0))
    lift.run()
    assert [entry.token_id for entry in lift.prompt_logprobs["r"]] == ids(40)[1:]
    assert lift.prompt_logprobs["r"] == reference.prompt_logprobs["r"]
    assert lift.prompt_logprobs["one"] == []
    assert lift.results["r"][-1].num_cached_tokens == 0


def test_prompt_logprobs_survive_preemption_in_the_middle():
    """Preempted between two chunks of its prompt, a request still reports each position once."""
    lift = make_lift(budget=16, blocks=14, seqs=4)
    lift.add(make_request("old", ids(60), max_tokens=150))
    for _ in range(60):
        lift.step()
    new = lift.add(make_request("new", ids(80, 1), prompt_logprobs=0))
    lift.step()
    lift.step()
    assert 0 < new.num_computed_tokens < 80
    # Force it out, as when blocks run out for the old one.
    plan_victim = lift.scheduler._preempt
    original = lift.scheduler._line_up_prefills

    def throw_out(plan, prefills):
        if new in prefills and new.num_preemptions == 0:
            plan_victim(plan, new, "test")
        original(plan, prefills)

    lift.scheduler._line_up_prefills = throw_out
    lift.run()
    assert new.num_preemptions > 0
    assert [entry.token_id for entry in lift.prompt_logprobs["new"]] == ids(80, 1)[1:]


# -- B13: abort ----------------------------------------------------------------------------------------------------


def test_b13_aborts_at_every_moment_leak_nothing():
    """Waiting, between chunks, decoding, preempted: after the aborts the whole pool can be used again."""
    lift = make_lift(budget=8, blocks=20, seqs=4)
    random, seen = Random(1), set()
    for i in range(60):
        lift.add(make_request(f"r{i}", ids(20 + i, i), max_tokens=40))
    while lift.scheduler.num_waiting:
        for _ in range(random.randrange(20)):
            lift.step()
        request = random.choice(list(lift.scheduler._requests.values()))
        seen.add((request.status.value, request.num_uncomputed_tokens > 1))
        assert lift.scheduler.abort(request.request_id)
        assert not lift.scheduler.abort(request.request_id)
        lift.scheduler.check_integrity()
    assert seen >= {("waiting", True), ("running", False), ("running", True)}
    for request_id in list(lift.scheduler._requests):
        lift.scheduler.abort(request_id)
    lift.run()
    stats = lift.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, lift.scheduler.blocks.pool.num_used) == (0, 0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == 20
    assert lift.runner.rows == {}
    whole = lift.add(make_request("whole", ids(310), max_tokens=11))
    lift.run()
    assert lift.outputs["whole"] == expected(whole)[0]


def test_a_preempted_request_can_be_aborted():
    """It holds no blocks and no row, and just leaves the queue."""
    lift = make_lift(blocks=8, seqs=2)
    lift.add(make_request("old", ids(48), max_tokens=70))
    lift.add(make_request("new", ids(40, 1), max_tokens=60))
    while not lift.steps or not lift.steps[-1].preempted:
        lift.step()
    assert lift.scheduler.abort("new")
    lift.run()
    assert list(lift.finish) == ["old"]


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_an_abort_in_flight_drops_the_result(num_steps):
    """Aborted between schedule and update, boarding, prefilling or decoding: nothing more is reported."""
    lift = make_lift(budget=16)
    lift.add(make_request("a", ids(40)))
    other = lift.add(make_request("b", ids(3, 1)))
    for _ in range(num_steps):
        lift.step()
    before = list(lift.outputs["a"])
    scheduled = lift.begin()
    lift.scheduler.abort("a")
    lift.end(scheduled)
    lift.scheduler.check_integrity()
    assert lift.outputs["a"] == before
    assert lift.step().finished_request_ids == ["a"]
    lift.run()
    assert lift.outputs["b"] == expected(other)[0]
    assert "a" not in lift.finish


def test_an_id_may_be_used_again_while_its_old_step_is_in_flight():
    """The old request's result does not end up with the new request of that name."""
    lift = make_lift()
    lift.add(make_request("a", ids(20)))
    lift.step()
    scheduled = lift.begin()
    lift.scheduler.abort("a")
    again = lift.add(make_request("a", ids(9, 3)))
    lift.end(scheduled)
    assert lift.outputs["a"] == []
    lift.run()
    assert lift.outputs["a"] == expected(again)[0]


# -- how requests end --------------------------------------------------------------------------------------------


def test_stops_and_limits():
    """EOS, a stop id, max_tokens and max_model_len: reason, stop id, and the stop token is part of the output."""
    lift = make_lift(ctx=40)
    requests = [
        lift.add(make_request("eos", ids(5), max_tokens=30, ignore_eos=False, seed=3)),
        lift.add(make_request("id", ids(5), max_tokens=30, stop_token_ids=[4, 5], seed=4)),
        lift.add(make_request("length", ids(5), max_tokens=3)),
        lift.add(make_request("context", ids(5), max_tokens=None)),
    ]
    lift.run()
    for request in requests:
        assert (lift.outputs[request.request_id], lift.finish[request.request_id]) == expected(request, 40)
    ends = {
        name: (results[-1].finish_reason, results[-1].stop_reason) for name, results in lift.results.items()
    }
    stop_id = lift.outputs["id"][-1]
    assert stop_id in (4, 5)
    assert ends == {
        "eos": ("stop", None),
        "id": ("stop", stop_id),
        "length": ("length", None),
        "context": ("length", None),
    }
    assert lift.outputs["eos"][-1] == EOS
    assert len(lift.outputs["context"]) == 35


@pytest.mark.parametrize("budget", [16, 256])
def test_max_tokens_zero_computes_the_prompt_and_reports_no_token(budget):
    """Every prefill chunk runs, the prompt's logprobs come, no token does, and the reason is length."""
    lift = make_lift(budget=budget)
    lift.add(make_request("a", ids(100), max_tokens=0, prompt_logprobs=5))
    lift.run()
    (result,) = lift.results["a"]
    assert (result.new_token_ids, result.finish_reason) == ([], "length")
    assert len(result.prompt_logprobs) == 99
    assert sum(step.num_scheduled_tokens for step in lift.steps) == 100


def test_logprobs_come_beside_their_tokens():
    """Asked or not, one entry for each new token, or None."""
    lift = make_lift(drafts=3)
    lift.add(make_request("a", ids(5), logprobs=2, max_tokens=40))
    lift.add(make_request("b", ids(5)))
    lift.run()
    for result in lift.results["a"]:
        assert [entry.token_id for entry in result.logprobs] == result.new_token_ids
    assert all(result.logprobs is None for result in lift.results["b"])


@pytest.mark.parametrize("cut", [1, 7, 19])
def test_resuming_goes_on_with_the_same_tokens(cut):
    """A request resumed after `cut` tokens, in a new engine, ends as if nothing had happened."""
    whole = expected(make_request("x", ids(30), max_tokens=20, min_tokens=20))[0]
    lift = make_lift(budget=16)
    lift.add(make_request("a", ids(30), max_tokens=20, min_tokens=20, output=whole[:cut]))
    lift.run()
    assert lift.outputs["a"] == whole
    assert sum(len(result.new_token_ids) for result in lift.results["a"]) == 20 - cut


# -- drafts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 5, 256])
@pytest.mark.parametrize("drafts", [1, 3, 8])
def test_drafts_change_the_number_of_steps_only(budget, drafts):
    """Verification is the one rule too: the tokens are those without drafts, in fewer steps, within the budget."""
    lift = make_lift(drafts=drafts, budget=budget)
    requests = [lift.add(make_request(f"r{i}", ids(9, i), max_tokens=50, seed=i)) for i in range(3)]
    num_steps = lift.run()
    assert lift.outputs == {r.request_id: expected(r)[0] for r in requests}
    if budget > 5:
        assert lift.runner.num_accepted > 0
        assert lift.runner.num_rejected > 0
        assert num_steps < 50


@pytest.mark.parametrize("position", range(1, 30))
def test_a_stop_inside_accepted_drafts_ends_there(position):
    """Nothing after a stop token is reported, and never more than max_tokens."""
    lift = make_lift(drafts=8)
    free = expected(make_request("x", ids(9), max_tokens=40))[0]
    for name, params in (
        ("stop", {"stop_token_ids": [free[position]], "max_tokens": 40}),
        ("length", {"max_tokens": position}),
        ("both", {"stop_token_ids": [free[position]], "max_tokens": position + 1}),
    ):
        request = lift.add(make_request(name, ids(9), **params))
        lift.run()
        assert (lift.outputs[name], lift.finish[name]) == expected(request)


def test_rejected_drafts_are_never_cached():
    """Only accepted tokens are keyed: whatever is found later was computed from the tokens it is found by."""
    lift = make_lift(drafts=8, blocks=60)
    requests = [lift.add(make_request(f"r{i}", ids(5, i), max_tokens=100, seed=i)) for i in range(4)]
    lift.run()
    assert lift.runner.num_rejected > 0
    for i, request in enumerate(requests):
        lift.add(make_request(f"again{i}", [*request.token_ids, 1], max_tokens=4))
    lift.run()  # the fake runner reads every slot of what was found
    assert all(lift.results[f"again{i}"][-1].num_cached_tokens >= 96 for i in range(4))


def test_streams_come_before_drafts():
    """With a budget of one token each, drafts wait."""
    lift = make_lift(drafts=4, budget=3, seqs=3)
    for i in range(3):
        lift.add(make_request(f"r{i}", ids(1, i), max_tokens=10))
    lift.run()
    assert all(len(shares(step)) == 3 for step in lift.steps[3:9])


# -- the runner breaks its contract ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [[], [1, 2]])
def test_too_few_or_too_many_tokens_are_an_error(tokens):
    """The runner must return one token for a caught-up request, and no more than its drafts allow."""
    lift = make_lift()
    lift.add(make_request("a", ids(3)))
    scheduled = lift.begin()
    with pytest.raises(ServerError, match=f"returned {len(tokens)} tokens for a, which had 0 drafts"):
        lift.scheduler.update(scheduled, ModelRunnerOutput(sampled_token_ids={"a": tokens}))


def test_a_step_is_applied_once():
    """Applying a step again, or one never planned, is an error."""
    lift = make_lift()
    lift.add(make_request("a", ids(3)))
    scheduled = lift.step()
    with pytest.raises(ServerError, match="step 1 is not in flight"):
        lift.scheduler.update(scheduled, ModelRunnerOutput())


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda s: s._running.clear(), "are not all requests"),
        (lambda s: s.blocks.free(s._requests["a"]), "run without blocks"),
        (lambda s: setattr(s, "_max_running", 0), "the limit is 0"),
    ],
)
def test_check_integrity_notices_damage(corrupt, message):
    """The check is not vacuous."""
    lift = make_lift()
    lift.add(make_request("a", ids(3)))
    lift.step()
    corrupt(lift.scheduler)
    with pytest.raises(ServerError, match=message):
        lift.scheduler.check_integrity()


def test_a_policy_can_keep_requests_waiting():
    """`may_admit` is a gate: static batching is a policy that lets nobody in while somebody runs."""

    class Static:
        def order(self, waiting, now):
            return waiting

        def may_admit(self, request, running, now):
            return all(other.num_output_tokens == 0 for other in running)

        def victims(self, running, need, now):
            return reversed(list(running))

    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=2), num_blocks=100, block_size=16, max_model_len=500, policy=Static()
    )
    lift = Lift(scheduler, FakeRunner(16))
    for i in range(4):
        lift.add(make_request(f"r{i}", ids(3, i), max_tokens=3 + i % 2))
    lift.run()
    assert [len(step.new_requests) for step in lift.steps if step.new_requests] == [2, 2]
