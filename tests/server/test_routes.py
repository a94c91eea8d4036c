"""The smaller routes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.server.routes.tokenize import MAX_DETOKENIZE_IDS
from fakes import ByteTokenizer
from server.serving import Served, serving


def test_models(server: Served) -> None:
    """The list has the context's length, which clients use to cut prompts."""
    document = server.http.get("/v1/models").json()
    (card,) = document["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("scripted", "model", 512)
    assert server.http.get("/v1/models/scripted").json() == card
    assert server.http.get("/v1/models/").json() == document


def test_several_names() -> None:
    """The model answers to each of its names, with slashes too, and to none."""
    with serving({"Hi": "Hello"}, names=("a", "org/b")) as served:
        assert [card["id"] for card in served.http.get("/v1/models").json()["data"]] == ["a", "org/b"]
        assert served.http.get("/v1/models/org/b").json()["id"] == "org/b"
        assert served.complete("Hi", model="org/b")["model"] == "org/b"
        assert served.complete("Hi")["model"] == "a"


def test_health_and_version(server: Served) -> None:
    """What probes ask."""
    assert server.http.get("/health").json() == {"status": "ready"}
    assert server.http.get("/ping").status_code == 200
    assert server.http.get("/version").json() == {"version": "1.2.3"}


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics", "/v1/models"])
def test_head(server: Served, path: str) -> None:
    """HEAD answers as GET does, without the body."""
    response = server.http.head(path)
    assert response.status_code == 200
    assert response.content == b""


def test_metrics() -> None:
    """B76: Prometheus can read them; counts add up; gauges are idle when the server is."""
    with serving({"Hi": "Hello"}) as served:
        for _ in range(3):
            served.complete("Hi")
        served.refusal("/v1/completions", {"prompt": ""})
        text = served.http.get("/metrics").text
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert values["chairlift:request_success_total", "stop"] == 3
        assert values["chairlift:generation_tokens_total",] == 18
        assert values["chairlift:num_requests_running",] == 0
        assert values["chairlift:num_requests_waiting",] == 0


def test_tokenize(server: Served) -> None:
    """vLLM's shape, for a prompt and for messages."""
    document = server.post("/tokenize", {"prompt": "Hé", "return_token_strs": True}).json()
    assert document == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [72, 195, 169],
        "token_strs": ["H", "\ufffd", "\ufffd"],
    }
    chat = server.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json()
    assert chat["tokens"][0] == 257
    assert chat["token_strs"] is None
    assert server.post("/tokenize", {"prompt": ""}).json()["tokens"] == []
    long = server.post("/tokenize", {"prompt": "é" * 10_000}).json()
    assert long["count"] == 20_000


def test_detokenize_takes_the_ids_of_the_model() -> None:
    """A model may have more ids than its tokenizer; those in between are no error, those beyond are."""

    class Smaller(ByteTokenizer):
        vocab_size = 259  # type: ignore[assignment]

    with serving(tokenizer=Smaller()) as served:
        assert served.post("/detokenize", {"tokens": [72, 299]}).status_code == 200
        served.refusal("/detokenize", {"tokens": [72, 300]})


def test_detokenize(server: Served) -> None:
    """Special tokens are part of the text."""
    assert server.post("/detokenize", {"tokens": [257, 72, 195, 169]}).json() == {"prompt": "<|im_start|>Hé"}
    assert server.post("/detokenize", {"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(("count", "beside"), [(4096, False), (4097, True)])
def test_many_ids_are_worked_on_beside_the_event_loop(count: int, beside: bool) -> None:
    """The thread that serves streams spells neither a long list of ids nor the tokens of a long text."""
    threads = set()

    class Watched(ByteTokenizer):
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            threads.add(threading.get_ident())
            return super().decode(ids, skip_special_tokens=skip_special_tokens)

        def token_text(self, token_id: int) -> str:
            threads.add(threading.get_ident())
            return super().token_text(token_id)

    with serving(tokenizer=Watched()) as served:
        served.post("/detokenize", {"tokens": [72]})
        loop = threads.copy()
        assert served.post("/detokenize", {"tokens": [72] * count}).json() == {"prompt": "H" * count}
        assert bool(threads - loop) == beside
        threads.clear()
        body = {"prompt": "H" * count, "return_token_strs": True}
        assert served.post("/tokenize", body).json()["token_strs"] == ["H"] * count
        assert threads.isdisjoint(loop) == beside
        assert served.refusal("/detokenize", {"tokens": [72] * count + [300]})["param"] == "tokens"


def test_too_many_ids(server: Served) -> None:
    """More ids than any context holds are refused with their number and the limit."""
    error = server.refusal("/detokenize", {"tokens": [72] * (MAX_DETOKENIZE_IDS + 1)})
    assert error["param"] == "tokens"
    assert "1048577 ids, more than 1048576" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
    ],
)
def test_wrong_bodies(server: Served, path: str, body: dict, param: str) -> None:
    """A 400 that names the field."""
    assert server.refusal(path, body)["param"] == param


def test_openapi_describes_the_bodies(server: Served) -> None:
    """The generated documentation knows the fields although routes parse bodies themselves."""
    document = server.http.get("/openapi.json").json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert "max_completion_tokens" in schema["properties"]
