from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.errors import InvalidParameterError, ModelLoadError
from chairlift.tokenizer.tokenizer import HFTokenizer
from tokenizer import goldens


@pytest.fixture
def smollm_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(goldens.smollm()._backend.to_str(), encoding="utf-8")
    return path


@pytest.fixture
def spm_file(tmp_path: Path) -> Path:
    """As Hugging Face writes a SentencePiece tokenizer, with the decoder that drops the leading space."""
    document = json.loads(goldens.spm()._backend.to_str())
    document["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_file_and_gguf_agree(smollm_file: Path) -> None:
    """tokenizer.json and GGUF metadata of one model give equal ids and text."""
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    from_file, from_gguf = HFTokenizer.from_file(smollm_file, config), goldens.smollm()
    assert from_file.eos_token_ids == from_gguf.eos_token_ids == (2,)
    assert from_file.bos_token_id == from_gguf.bos_token_id == 1
    assert from_file.vocab_size == from_gguf.vocab_size
    for golden in goldens.load("tokenizer_goldens.json")["goldens"]:
        ids = from_file.encode(golden["text"])
        assert ids == from_gguf.encode(golden["text"])
        assert from_file.decode(ids) == from_gguf.decode(ids)


def test_sentencepiece_file_agrees(spm_file: Path) -> None:
    """The same for a SentencePiece vocabulary."""
    from_file, from_gguf = HFTokenizer.from_file(spm_file, {"bos_token": "<s>"}), goldens.spm()
    for golden in goldens.load("spm_goldens.json")["goldens"]:
        ids = from_file.encode(golden["text"])
        assert ids == from_gguf.encode(golden["text"])
        assert from_file.decode(ids) == golden["decoded"]


def test_llama_flags_of_the_config_are_honoured(spm_file: Path) -> None:
    """add_bos_token and add_eos_token of a Llama tokenizer_config.json decide, as in Hugging Face."""
    config: dict[str, Any] = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    without = HFTokenizer.from_file(spm_file, config | {"add_bos_token": False})
    both = HFTokenizer.from_file(spm_file, config | {"add_bos_token": True, "add_eos_token": True})
    assert both.encode("Hello") == [1, *without.encode("Hello"), 2]


def test_ends_of_sequence_are_united(smollm_file: Path) -> None:
    """B26: ids of generation_config, the tokenizer's eos and the template's turn end, each once."""
    tokenizer = HFTokenizer.from_file(
        smollm_file, {"eos_token": "<|endoftext|>"}, eos_token_ids=[5, 0], chat_template="x<|im_end|>"
    )
    assert tokenizer.eos_token_ids == (5, 0, 2)


def test_tokens_stand_for_exact_bytes() -> None:
    """token_bytes of the ids of a text join to its UTF-8 bytes, whatever the text."""
    tokenizer = goldens.smollm()
    for golden in goldens.load("tokenizer_goldens.json")["goldens"]:
        ids = tokenizer.encode(golden["text"])
        assert b"".join(map(tokenizer.token_bytes, ids)) == golden["text"].encode()


def test_special_tokens_are_known_by_text() -> None:
    """Control tokens are found by their text, which is what token_text gives."""
    tokenizer = goldens.smollm()
    assert tokenizer.special_token_id("<|im_end|>") == 2
    assert tokenizer.special_token_id("Hello") is None
    assert tokenizer.is_special(2)
    assert not tokenizer.is_special(100)
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(tokenizer.encode("😀")[0]) == "\ufffd"


def test_half_a_surrogate_pair_is_the_clients_fault() -> None:
    r"""JSON can spell "\ud800", which no UTF-8 text can hold."""
    with pytest.raises(InvalidParameterError, match="surrogate"):
        goldens.smollm().encode("a\ud800b")


def test_ids_beyond_the_vocabulary_are_no_text() -> None:
    """Models round their vocabulary up, so one may sample an id that the tokenizer has never heard of."""
    tokenizer = goldens.smollm()
    (letter,) = tokenizer.encode("a")
    beyond = tokenizer.vocab_size
    assert tokenizer.decode([letter, beyond, letter]) == "aa"
    assert tokenizer.token_bytes(beyond) == b""
    assert tokenizer.token_text(beyond) == ""
    assert not tokenizer.is_special(beyond)


def test_a_negative_id_is_the_callers_fault() -> None:
    """It stands for nothing in any vocabulary."""
    with pytest.raises(InvalidParameterError, match="token id -1 is negative"):
        goldens.smollm().decode([-1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a tokenizer.json"),
        ('{"model": {}, "decoder": {"type": "WordPiece"}}', "WordPiece"),
        ('{"model": {}, "decoder": {"type": "ByteLevel"}}', "cannot be used|can be used"),
        ('{"model": {}, "decoder": null}', "supported are"),
    ],
)
def test_damaged_files_are_an_error_message(tmp_path: Path, content: str, message: str) -> None:
    """A file that is not a usable tokenizer raises ModelLoadError that says why."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=message):
        HFTokenizer.from_file(path)


def test_a_missing_file_is_an_error_message(tmp_path: Path) -> None:
    """So is no file at all."""
    with pytest.raises(ModelLoadError, match="No such file"):
        HFTokenizer.from_file(tmp_path / "nothing.json")
