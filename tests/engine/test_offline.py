"""Tests of the front end in the caller's process."""

from __future__ import annotations

import pytest

from chairlift.engine.client import InProcessClient
from chairlift.engine.offline import OfflineFrontend, OfflineRequest
from chairlift.engine.types import RequestOutput
from chairlift.errors import ContextLengthError, InvalidParameterError, PoolTooSmallError
from chairlift.sampling_params import SamplingParams
from fakes import EOS, EOS_TEXT, Assembly, ByteTokenizer, ScriptedRunner, build

TOKENIZER = ByteTokenizer()


def frontend(assembly: Assembly | None = None, seed: int | None = None) -> OfflineFrontend:
    return OfflineFrontend(InProcessClient((assembly or build()).engine), TOKENIZER, seed=seed)


def req(request_id: str, prompt: str, **params: object) -> OfflineRequest:
    return OfflineRequest(request_id, prompt, TOKENIZER.encode(prompt), SamplingParams(**params))  # type: ignore[arg-type]


def test_results_come_in_the_callers_order() -> None:
    """Whoever ends first, results are in the order of the requests; on_finished hears of each once, as it ends."""
    runner = ScriptedRunner({"a": "a long answer", "b": "ok"})
    heard: list[RequestOutput] = []
    results = frontend(build(runner)).run([req("1", "a"), req("2", "b")], on_finished=heard.append)
    assert [result.outputs[0].text for result in results] == ["a long answer", "ok"]
    assert [result.request_id for result in heard] == ["2", "1"]
    assert [result.prompt for result in results] == ["a", "b"]
    assert all(result.finished for result in results)


def test_b30_choices_differ_and_a_seed_repeats_them() -> None:
    """n=8 gives distinct choices; the same seed gives the same list; without a seed another one."""
    engine = frontend()
    seeded = [engine.run([req("x", "Sea", n=8, seed=5, max_tokens=20)])[0] for _ in range(2)]
    unseeded = [engine.run([req("x", "Sea", n=8, max_tokens=20)])[0] for _ in range(2)]
    texts = [[output.text for output in result.outputs] for result in (*seeded, *unseeded)]
    assert texts[0] == texts[1]
    assert texts[1] != texts[2] != texts[3]
    assert all(len(set(each)) == 8 for each in texts)
    assert [output.index for output in seeded[0].outputs] == list(range(8))


def test_the_engine_seed_makes_unseeded_requests_repeatable() -> None:
    """Two front ends with the same seed draw the same seeds."""
    outputs = [frontend(seed=3).run([req("x", "Sea", max_tokens=20)])[0].outputs[0].text for _ in range(2)]
    assert outputs[0] == outputs[1]


def test_one_bad_request_refuses_the_call_before_any_work() -> None:
    """All are checked first; the error has the numbers, and nothing has run."""
    assembly = build(max_model_len=32, num_kv_blocks=64)
    engine = frontend(assembly)
    with pytest.raises(ContextLengthError, match="40"):
        engine.run([req("1", "fine"), req("2", "x" * 40)])
    assert assembly.runner.num_calls == 0
    assert engine.run([req("1", "fine")])[0].finished


@pytest.mark.parametrize(
    ("ids", "match"),
    [([], "no tokens"), ([300], r"300.*\[0, 300\)"), ([-1], "-1"), ([1.5], "token id"), (["a"], "token id")],
)
def test_b34_b54_prompts_that_cannot_be(ids: list[int], match: str) -> None:
    """An empty prompt or an id that is none is refused, naming it."""
    with pytest.raises(InvalidParameterError, match=match):
        frontend().run([OfflineRequest("r", None, ids, SamplingParams())])


@pytest.mark.parametrize("params", [{"logit_bias": {300: 1.0}}, {"stop_token_ids": [300]}])
def test_b34_parameters_outside_the_vocabulary(params: dict[str, object]) -> None:
    """Token ids in parameters are checked against the model's vocabulary; the field is named."""
    with pytest.raises(InvalidParameterError) as refusal:
        frontend().run([req("r", "x", **params)])
    assert refusal.value.param == next(iter(params))


def test_b01_the_pool_decides_too() -> None:
    """What fits the context but never the pool is refused with the numbers; what just fits runs."""
    engine = frontend(build(num_kv_blocks=4, max_model_len=1000))
    with pytest.raises(PoolTooSmallError, match="4"):
        engine.run([req("r", "x" * 60, max_tokens=6)])
    assert len(engine.run([req("r", "x" * 60, max_tokens=5)])[0].outputs[0].token_ids) == 5


def test_stop_strings_need_text() -> None:
    """stop with detokenize=False is refused; so is a stop string of absurd length."""
    for params in ({"stop": ["x"], "detokenize": False}, {"stop": ["x" * 5000]}):
        with pytest.raises(InvalidParameterError) as refusal:
            frontend().run([req("r", "x", **params)])
        assert refusal.value.param == "stop"


def test_b36_max_tokens_absent_goes_to_the_end_of_the_context() -> None:
    """None means as many tokens as fit; 1 is one token; both end with "length"."""
    engine = frontend(build(max_model_len=40))
    none, one = engine.run([req("1", "x" * 30, max_tokens=None), req("2", "x", max_tokens=1)])
    assert [len(result.outputs[0].token_ids) for result in (none, one)] == [10, 1]
    assert [result.outputs[0].finish_reason for result in (none, one)] == ["length", "length"]


def test_a_stop_string_ends_the_work_too() -> None:
    """After a hit the engine is told, so it computes no more for this request."""
    assembly = build(ScriptedRunner({"a": "one two three four five six"}))
    (result,) = frontend(assembly).run([req("1", "a", stop=["two"], max_tokens=100)])
    assert (result.outputs[0].text, result.outputs[0].stop_reason) == ("one ", "two")
    assert assembly.runner.num_tokens == len("one two")


def test_b26_a_special_token_as_stop_string_reaches_the_engine() -> None:
    """With ignore_eos only the stop string ends it, and it shows nowhere."""
    runner = ScriptedRunner({"a": [*b"hey", EOS, *b"you"]})
    (result,) = frontend(build(runner)).run([req("1", "a", stop=[EOS_TEXT], ignore_eos=True, max_tokens=50)])
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("hey", "stop")
    assert result.outputs[0].stop_reason == EOS_TEXT


def test_prompt_logprobs_have_one_entry_per_prompt_token() -> None:
    """The first is None, the rest are about that token; a warm cache changes nothing."""
    engine = frontend(build(max_num_batched_tokens=16))
    cold, warm = (
        engine.run([req("r", "x" * 20 + "y" * 20, prompt_logprobs=2, max_tokens=1, n=2)])[0] for _ in range(2)
    )
    assert cold.prompt_logprobs == warm.prompt_logprobs
    entries = cold.prompt_logprobs or []
    assert entries[0] is None
    assert [next(iter(entry)) for entry in entries[1:] if entry] == [*b"x" * 19, *b"y" * 20]


def test_cached_tokens_are_reported() -> None:
    """The second run of a prompt finds its full blocks in the cache."""
    engine = frontend()
    results = [engine.run([req("r", "x" * 40, max_tokens=2)])[0] for _ in range(2)]
    assert [result.num_cached_tokens for result in results] == [0, 32]


def test_stream_yields_what_run_returns() -> None:
    """Joined deltas equal the text; the last has the finish reason."""
    runner = ScriptedRunner({"a": "héllo"})
    deltas = list(frontend(build(runner)).stream(req("1", "a")))
    assert "".join(delta.text for delta in deltas) == "héllo"
    assert [delta.finish_reason for delta in deltas] == [None] * 6 + ["stop"]


def test_prompt_logprobs_of_one_token_are_there() -> None:
    """The first token has none, so a prompt of one token has a list of one None, as longer prompts begin with."""
    one, three, unasked = frontend().run(
        [
            req("1", "a", prompt_logprobs=1, max_tokens=2),
            req("2", "abc", prompt_logprobs=1, max_tokens=2),
            req("3", "a", max_tokens=2),
        ]
    )
    assert one.prompt_logprobs == [None]
    assert three.prompt_logprobs is not None
    assert [entry is None for entry in three.prompt_logprobs] == [True, False, False]
    assert unasked.prompt_logprobs is None


def test_a_refused_stream_raises_at_once() -> None:
    """The refusal comes from the call, not from the first `next`."""
    with pytest.raises(InvalidParameterError):
        frontend().stream(req("1", ""))


def test_closing_a_stream_frees_it_and_two_can_be_read_in_turn() -> None:
    """Streams and runs mix without losing each other's tokens; a closed one leaves no blocks behind."""
    assembly = build()
    engine = frontend(assembly)
    (alone,) = engine.run([req("x", "first", seed=1, max_tokens=12)])
    first, second = engine.stream(req("1", "first", seed=1, max_tokens=12)), engine.stream(req("2", "b"))
    text = next(first).text + next(first).text
    next(second)
    second.close()  # type: ignore[attr-defined]
    engine.run([req("3", "third", max_tokens=5)])
    text += "".join(delta.text for delta in first)
    assert text == alone.outputs[0].text
    assert assembly.scheduler.blocks.pool.num_used == 0


def test_an_error_in_a_step_drops_everything_and_is_raised() -> None:
    """The caller gets the runner's exception, not a hang."""
    engine = frontend(build(ScriptedRunner(raise_at=3)))
    with pytest.raises(RuntimeError, match="scripted failure"):
        engine.run([req("1", "a", max_tokens=10)])
