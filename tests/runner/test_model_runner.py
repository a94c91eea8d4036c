"""Tokens and logprobs depend on the request alone: not on neighbours, chunks, preemption or who had the row before."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from chairlift.core.messages import NewRequest, ScheduledRequest, SchedulerOutput
from chairlift.sampling_params import SamplingParams
from ops.backends import BACKENDS
from runner.lift import MAX_LEN, VOCAB_SIZE, Lift, Rider

MakeLift = Callable[..., Lift]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0.0},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "logprobs": {"logprobs": 5, "temperature": 0.8},
    "bias": {"logit_bias": {5: 4.0, 9: -100.0, 11: 3.0}},
    "truncated": {"top_k": 20, "top_p": 0.8, "min_p": 0.01},
    "patient": {"min_tokens": 4, "stop_token_ids": (5, 6), "logit_bias": {5: 9.0}},
    "scored": {"prompt_logprobs": 2, "logprobs": 0},
}


def prompt_of(number: int, length: int) -> list[int]:
    return np.random.default_rng(number).integers(3, VOCAB_SIZE, length).tolist()


def ask_all(lift: Lift) -> list[Rider]:
    """One request of each kind, prompts of 1 to 40 tokens."""
    lengths = (1, 40, 17, 16, 33, 5, 8, 31)
    return [
        lift.ask(name, prompt_of(i, lengths[i]), seed=2**64 - 1 - i, **params)
        for i, (name, params) in enumerate(KINDS.items())
    ]


@pytest.fixture(params=list(BACKENDS), scope="module")
def make_lift(request: pytest.FixtureRequest) -> MakeLift:
    """Makes a `Lift` on one of the backends."""
    return partial(Lift, BACKENDS[request.param])


@pytest.fixture(scope="module")
def alone(make_lift: MakeLift) -> dict[str, Any]:
    """The result of each kind with the runner to itself, its prompt in one chunk."""
    results = {}
    for name in KINDS:
        lift = make_lift()
        rider = next(rider for rider in ask_all(lift) if rider.request_id == name)
        lift.run(order=[name])
        results[name] = rider.result
    return results


def test_the_kinds_are_really_different(alone: dict[str, Any]) -> None:
    """Every kind gave eight tokens, and logprobs only where asked; so equality below means something."""
    assert all(len(output) == 8 for output, _, _ in alone.values())
    assert {name for name, (_, logprobs, _) in alone.items() if logprobs} == {"logprobs", "scored"}
    assert len(alone["scored"][2]) == 30
    assert 9 not in alone["bias"][0]
    assert {5, 11} & set(alone["bias"][0])


@pytest.mark.parametrize("budget", [3, 7, 16, 256])
@pytest.mark.parametrize("block_size", [16, 32])
def test_together_and_chunked_is_as_alone(
    make_lift: MakeLift, alone: dict[str, Any], budget: int, block_size: int
) -> None:
    """All eight kinds at once, prompts cut to what the budget leaves: tokens and logprobs as alone."""
    lift = make_lift(block_size=block_size)
    riders = ask_all(lift)
    lift.run(budget)
    assert {rider.request_id: rider.result for rider in riders} == alone


def test_the_order_in_a_batch_does_not_matter(make_lift: MakeLift, alone: dict[str, Any]) -> None:
    """Requests in any order, joining while others prefill: as alone."""
    rng = random.Random(1)
    for _ in range(6):
        lift = make_lift()
        riders = ask_all(lift)
        order = list(KINDS)
        rng.shuffle(order)
        for joined in range(1, len(order)):  # one joins at every step, three rows each
            share = {name: min(3, lift.riders[name].missing) for name in order[:joined]}
            lift.step({name: count for name, count in share.items() if lift.goes_on(lift.riders[name])})
        lift.run(11, order)
        assert {rider.request_id: rider.result for rider in riders} == alone


def test_every_order_of_arrival_with_and_without_options(make_lift: MakeLift, alone: dict[str, Any]) -> None:
    """Options of a request never depend on what the first row of the batch had: all orders of four kinds."""
    names = ["plain", "penalties", "logprobs", "bias"]
    for order in itertools.permutations(names):
        lift = make_lift()
        ask_all(lift)
        lift.run(16, order)
        assert {name: lift.riders[name].result for name in names} == {name: alone[name] for name in names}


def test_a_preempted_requestgoes_on_where_it_was(make_lift: MakeLift, alone: dict[str, Any]) -> None:
    """Dropped at random moments, in prefill and decode, and sent again with all its tokens: as never dropped."""
    rng = random.Random(2)
    lift = make_lift(num_blocks=40)
    riders = ask_all(lift)
    preemptions = 0
    while going := [rider for rider in riders if lift.goes_on(rider)]:
        lift.step({rider.request_id: min(rider.missing, rng.randint(1, 9)) for rider in going})
        for rider in going:
            if not lift.goes_on(rider):
                lift.leave(rider.request_id)
            elif rng.random() < 0.08:
                lift.preempt(rider.request_id)
                preemptions += 1
    assert preemptions > 5
    assert {rider.request_id: rider.result for rider in riders} == alone


def test_a_row_keeps_nothing_of_its_last_owner(make_lift: MakeLift, alone: dict[str, Any]) -> None:
    """With a single row, each kind after each other kind gives what it gives on a fresh runner."""
    for first, second in itertools.permutations(KINDS, 2):
        lift = make_lift(max_num_seqs=1)
        ask_all(lift)
        lift.run(order=[first])
        lift.run(order=[second])
        assert lift.riders[second].result == alone[second], (first, second)


def test_prompt_logprobs_are_those_of_the_model(make_lift: MakeLift, alone: dict[str, Any]) -> None:
    """Entry i scores token i + 1 given those before it, whatever the chunks: as drawn from each prefix apart."""
    prompt = prompt_of(7, 31)
    entries = alone["scored"][2]
    assert [entry.token_id for entry in entries] == prompt[1:]
    for i in (0, 1, 15, 16, 29):
        lift = make_lift()
        only = lift.ask("one", prompt[: i + 1], max_tokens=1, temperature=0.0, logprobs=20)
        lift.run()
        (drawn,) = only.logprobs
        assert entries[i].top_ids == drawn.top_ids[:2]
        assert entries[i].top_logprobs == drawn.top_logprobs[:2]
        assert entries[i].rank >= 1


def test_a_request_that_returns_with_output_is_not_scored_again(make_lift: MakeLift) -> None:
    """Its prompt logprobs were handed out with its first token, so the recomputation asks for one row of logits."""
    lift = make_lift()
    rider = lift.ask("r", prompt_of(1, 20), prompt_logprobs=1)
    lift.step({"r": 20})
    lift.preempt("r")
    output = lift.step({"r": 21})
    assert output.prompt_logprobs == {}
    assert len(output.sampled_token_ids["r"]) == 1
    assert len(rider.prompt_logprobs) == 19


# -- drafts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["greedy", "plain", "penalties", "patient", "logprobs"])
@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_drafts_change_the_pace_and_nothing_else(
    make_lift: MakeLift, alone: dict[str, Any], name: str, num_right: int
) -> None:
    """Right drafts are accepted, the first wrong one ends the run, and tokens are those without drafts."""
    output = alone[name][0]
    lift = make_lift()
    riders = ask_all(lift)
    rider = next(rider for rider in riders if rider.request_id == name)
    lift.step({rider.request_id: rider.missing, "truncated": 5})
    wrong = (output[num_right + 1] + 1) % VOCAB_SIZE
    rider.drafts = (*output[1 : num_right + 1], wrong, 7)
    step = lift.step({name: 3 + num_right, "truncated": 1})
    assert step.sampled_token_ids[name] == output[1 : num_right + 2]
    assert rider.computed == len(rider.tokens) - 1
    lift.run()
    assert rider.result == alone[name]
    assert lift.riders["truncated"].result == alone["truncated"]


# -- what parameters mean ------------------------------------------------------------------------------------------
def test_stop_tokens_are_banned_until_min_tokens(make_lift: MakeLift) -> None:
    """A biased stop token and a biased EOS appear at once without min_tokens, and never before it with it."""
    lift = make_lift()
    for name, extra in {
        "stop": {"stop_token_ids": (50,), "logit_bias": {50: 99.0}},
        "eos": {"logit_bias": {2: 99.0}},
    }.items():
        lift.ask(name, [7, 8], **extra)
        lift.ask(name + " late", [7, 8], min_tokens=3, **extra)
    lift.ask("ignored", [7, 8], min_tokens=3, ignore_eos=True, logit_bias={2: 99.0})
    lift.run()
    for name, token in (("stop", 50), ("eos", 2)):
        assert lift.riders[name].output == [token] * 8
        late = lift.riders[name + " late"].output
        assert token not in late[:3]
        assert late[3:] == [token] * 5
    assert lift.riders["ignored"].output == [2] * 8


def test_a_bias_of_minus_100_is_a_ban(make_lift: MakeLift) -> None:
    """With every token but one at -100, the one is drawn, at any temperature."""
    lift = make_lift()
    rider = lift.ask("r", [3], temperature=2.0, logit_bias={i: -100.0 for i in range(VOCAB_SIZE) if i != 77})
    lift.run()
    assert rider.output == [77] * 8


@pytest.mark.parametrize("params", [{"temperature": 1e-5}, {"top_k": 1}, {"top_p": 0.0}], ids=str)
def test_what_is_greedy(make_lift: MakeLift, alone: dict[str, Any], params: dict[str, Any]) -> None:
    """A tiny temperature, top_k 1 and top_p 0 are greedy."""
    lift = make_lift()
    rider = lift.ask("r", prompt_of(1, 40), seed=99, **params)
    lift.run()
    assert rider.output == alone["greedy"][0]


def test_seed_and_branch_decide_the_draw(make_lift: MakeLift) -> None:
    """Two seeds give two texts, one seed gives one."""
    lift = make_lift()
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        lift.ask(name, [9], seed=seed, temperature=3.0)
    lift.run()
    a, b, c = (lift.riders[name].output for name in "abc")
    assert a == b != c


def test_the_last_token_of_a_full_context_is_still_sampled(make_lift: MakeLift) -> None:
    """A prompt as long as the context is computed and gives one more token."""
    lift = make_lift()
    rider = lift.ask("r", prompt_of(5, MAX_LEN), max_tokens=1)
    lift.run(40)
    assert len(rider.output) == 1


def test_output_is_plain_python(make_lift: MakeLift) -> None:
    """Ids, ranks and logprobs are int and float, ready for a wire format."""
    lift = make_lift()
    rider = lift.ask("r", [4, 5], logprobs=2, prompt_logprobs=0)
    lift.run()
    assert all(type(token) is int for token in rider.tokens)
    for entry in (*rider.logprobs, *rider.prompt_logprobs):
        assert type(entry.token_id) is type(entry.rank) is int
        assert type(entry.logprob) is float
        assert all(type(token) is int for token in entry.top_ids)
        assert all(type(value) is float for value in entry.top_logprobs)


# -- messages that contradict each other ---------------------------------------------------------------------------
def new_request(request_id: str = "r", tokens: int = 3, blocks: int = 1) -> NewRequest:
    return NewRequest(
        request_id, list(range(3, 3 + tokens)), tokens, SamplingParams(), 0, 0, list(range(blocks)), 0
    )


def test_a_step_without_rows_frees_rows(make_lift: MakeLift) -> None:
    """Finished requests are freed in a step that computes nothing; ids that never boarded are fine."""
    lift = make_lift(max_num_seqs=1)
    lift.ask("r", [4, 5])
    lift.run()
    output = lift.runner.execute(SchedulerOutput(9, finished_request_ids=["r", "never aboard"]))
    assert output.sampled_token_ids == {}
    lift.ask("s", [4, 5])
    lift.run(order=["s"])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (SchedulerOutput(0, scheduled=[ScheduledRequest("x", 1, 0)]), "'x' has no row"),
        (SchedulerOutput(0, [new_request(), new_request()]), "already has a row"),
        (SchedulerOutput(0, [new_request(str(i)) for i in range(9)]), "max_num_seqs"),
        (SchedulerOutput(0, [new_request(tokens=MAX_LEN + 1)]), "max_model_len 96"),
        (SchedulerOutput(0, [new_request(blocks=9)]), "9 blocks"),
        (SchedulerOutput(0, [new_request()], [ScheduledRequest("r", 4, 0)]), "it has 3 tokens"),
        (SchedulerOutput(0, [new_request(blocks=0)], [ScheduledRequest("r", 3, 0)]), "blocks for 0"),
        (
            SchedulerOutput(0, [new_request()], [ScheduledRequest("r", 3, 0, (), tuple(range(94)))]),
            "drafts reach position 96",
        ),
        (SchedulerOutput(0, [new_request()], [ScheduledRequest("r", 3, 0)], [(0, 999)]), "outside the pool"),
    ],
)
def test_contradictions_are_errors(make_lift: MakeLift, step: SchedulerOutput, message: str) -> None:
    """A message that cannot be right raises ValueError with the numbers, before anything is computed."""
    with pytest.raises(ValueError, match=message):
        make_lift().runner.execute(step)
