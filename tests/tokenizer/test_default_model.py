"""The default model's whole vocabulary."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chairlift.model.files import open_model_files
from chairlift.tokenizer.gguf import from_gguf_metadata
from chairlift.tokenizer.tokenizer import HFTokenizer
from tokenizer import goldens

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> HFTokenizer:
    metadata = open_model_files(default_model).metadata
    assert metadata is not None
    return from_gguf_metadata(metadata)


def test_ids_equal_hugging_face(tokenizer: HFTokenizer) -> None:
    """B49: 200 texts give the ids that transformers gave, and decode to themselves."""
    for golden in goldens.load("tokenizer_goldens.json")["goldens"]:
        ids = tokenizer.encode(golden["text"])
        assert ids == golden["ids"], golden["text"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == golden["text"]
        assert tokenizer.decode(ids) == golden["decoded_skipping"]


def test_known_splits(tokenizer: HFTokenizer) -> None:
    """B18, B45, B49: the facts that are known of this file."""
    known = {
        "2024": [34, 32, 34, 36],
        "😀": [10813, 242, 218],
        "ď": [143, 233],
        "世": [7906, 240],
        "own fox": [845, 16438],
        "\n\n": [1116],
        "ABCDEFGHIJ": [35542, 33203, 23960, 57, 58],
        "<|im_end|>": [2],
        "Hello": tokenizer.encode("Hello", add_special_tokens=False),  # add_bos is false
    }
    for text, ids in known.items():
        assert tokenizer.encode(text) == ids
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2,)
    assert all(map(tokenizer.is_special, range(17)))
    assert not tokenizer.is_special(17)


def test_it_is_built_in_a_fraction_of_a_second(default_model: Path) -> None:
    """49152 entries and their merges take about 0.1 s of one core."""
    metadata = open_model_files(default_model).metadata
    assert metadata is not None
    start = time.thread_time()
    from_gguf_metadata(metadata)
    assert time.thread_time() - start < 0.4
