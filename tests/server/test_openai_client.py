"""The official client against a real socket."""

from __future__ import annotations

import asyncio

import openai
import pytest

from server.serving import Served, serving


def test_chat(server: Served) -> None:
    """Document and stream, as the client parses them."""
    client = server.openai()
    messages = [{"role": "user", "content": "Hi"}]
    whole = client.chat.completions.create(model="scripted", messages=messages)
    assert whole.choices[0].message.content == "Hello there!"
    assert whole.choices[0].finish_reason == "stop"
    stream = client.chat.completions.create(
        model="scripted", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello there!"
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_completions(server: Served) -> None:
    """Text, logprobs and echo."""
    answer = server.openai().completions.create(
        model="scripted", prompt="Hi", max_tokens=5, logprobs=2, echo=True
    )
    choice = answer.choices[0]
    assert choice.text == "HiHello"
    assert choice.logprobs.tokens == list("HiHello")
    assert choice.logprobs.token_logprobs[0] is None


def test_models(server: Served) -> None:
    """The list and one of it."""
    client = server.openai()
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "chairlift"


def test_errors_are_the_clients_exceptions(server: Served) -> None:
    """The client understands our error documents."""
    client = server.openai()
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="scripted", prompt="Hi", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="Hi")
    assert missing.value.code == "model_not_found"


def test_32_streams_at_once() -> None:
    """32 clients stream together; each gets what it gets alone, and they share steps."""
    with serving(engine={"max_num_seqs": 32}) as served:
        alone = [
            served.chat(f"rider {i}", seed=i, max_tokens=40)["choices"][0]["message"]["content"]
            for i in range(32)
        ]
        steps = served.runner.num_calls

        async def one(client: openai.AsyncOpenAI, number: int) -> str:
            stream = await client.chat.completions.create(
                model="scripted",
                messages=[{"role": "user", "content": f"rider {number}"}],
                seed=number,
                max_tokens=40,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        async def everyone() -> list[str]:
            url = f"{served.url}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="key", max_retries=0) as client:
                return await asyncio.gather(*(one(client, number) for number in range(32)))

        assert asyncio.run(everyone()) == alone
        assert served.runner.num_calls - steps < 32 * 40 / 2
        served.assert_idle()


def test_breaking_out_of_a_stream_aborts_it() -> None:
    """B62: closing the client's stream frees the request."""
    with serving(engine={"max_model_len": 50_000, "num_kv_blocks": 5_000}) as served:
        stream = served.openai().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "x"}], stream=True
        )
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        stream.close()
        served.assert_idle()
        assert served.frontend.metrics.finish_reasons["abort"] == 1
