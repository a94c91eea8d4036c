from __future__ import annotations

from chairlift.engine.stream import RequestStream
from chairlift.engine.types import CompletionDelta
from chairlift.sampling_params import SamplingParams
from chairlift.server.prompts import Prompt
from chairlift.server.writers import ChatWriter, CompletionWriter
from fakes import ByteTokenizer, entry_of


def stream_of(ids: list[int]) -> RequestStream:
    return RequestStream("r", ids, [], lambda _: None)


def delta_of(index: int, text: str, finish: str | None = None, **fields: object) -> CompletionDelta:
    ids = list(text.encode())
    return CompletionDelta(index, text, ids, [entry_of(i, 0) for i in ids], finish, **fields)


def completion_writer(prompts: list[str], **fields: object) -> CompletionWriter:
    return CompletionWriter(
        "cmpl-1",
        "m",
        [Prompt(list(prompt.encode()), prompt) for prompt in prompts],
        SamplingParams(n=2, logprobs=0, prompt_logprobs=0),
        ByteTokenizer(),
        echo=True,
        **fields,
    )


def test_choices_wait_for_the_logprobs_of_their_own_prompt() -> None:
    """With a warm cache choice 1 may be ahead of choice 0, which brings the prompt's logprobs."""
    writer = completion_writer(["ab", "cd"])
    first, second = stream_of([97, 98]), stream_of([99, 100])
    assert writer.chunk_choices(0, delta_of(1, "x"), first) == []
    second.prompt_logprobs = [None, entry_of(100, 0)]
    (other,) = writer.chunk_choices(1, delta_of(1, "y"), second)
    assert (other["index"], other["text"]) == (3, "cdy")
    first.prompt_logprobs = [None, entry_of(98, 0)]
    held, now = writer.chunk_choices(0, delta_of(0, "z"), first)
    assert (held["index"], held["text"], now["index"], now["text"]) == (1, "abx", 0, "abz")
    assert held["logprobs"]["token_logprobs"] == [None, -98 / 256, -ord("x") / 256]


def test_the_token_that_ends_a_text_has_no_entry() -> None:
    """Neither an end of sequence, nor a stop token, nor a stop string that is one; a spelled one stays."""
    for reason, shown in ((None, 1), (7, 1), ("<|im_end|>", 1), ("b", 2)):
        writer = ChatWriter("id", "m", [], SamplingParams(logprobs=0), ByteTokenizer())
        delta = CompletionDelta(0, "a", [97, 256], [entry_of(97, 0), entry_of(256, 0)], "stop", reason)
        choice = writer.choice(0, delta, stream_of([1]))
        assert len(choice["logprobs"]["content"]) == shown
    kept = SamplingParams(logprobs=0, include_stop_str_in_output=True)
    writer = ChatWriter("id", "m", [], kept, ByteTokenizer())
    assert len(writer.choice(0, delta, stream_of([1]))["logprobs"]["content"]) == 2


def test_deltas_without_anything_to_show_make_no_chunk() -> None:
    """Text that is held back (half a character, maybe a stop string) sends nothing."""
    empty = CompletionDelta(0, "", [240], None)
    plain = CompletionWriter("id", "m", [Prompt([1], "x")], SamplingParams(), ByteTokenizer())
    assert plain.chunk_choices(0, empty, stream_of([1])) == []
    chat = ChatWriter("id", "m", [], SamplingParams(), ByteTokenizer())
    assert [chunk["delta"] for chunk in chat.chunk_choices(0, empty, stream_of([1]))] == [
        {"role": "assistant", "content": ""}
    ]
    assert chat.chunk_choices(0, empty, stream_of([1])) == []
