"""Record what Hugging Face and SentencePiece say, for the tests to compare with. Run by hand:

    python tests/tokenizer/record_goldens.py smollm TOKENIZER_JSON   (needs transformers)
    python tests/tokenizer/record_goldens.py spm                     (needs sentencepiece)

`smollm`: a tokenizer.json derived from the GGUF file by transformers forgets that SmolLM2 splits digits one
by one, so the pre-tokenizer of the original repository (Digits, then ByteLevel) is put back first.
`spm`: trains a tiny SentencePiece BPE model, and stores its vocabulary as a GGUF file would.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from sample_texts import sample_texts

DATA = Path(__file__).parent.parent / "data"
ORIGINAL_PRE_TOKENIZER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


def record_smollm(tokenizer_json: str) -> None:
    from transformers import PreTrainedTokenizerFast

    document = json.loads(Path(tokenizer_json).read_text(encoding="utf-8"))
    document["pre_tokenizer"] = ORIGINAL_PRE_TOKENIZER
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_text(json.dumps(document), encoding="utf-8")
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), clean_up_tokenization_spaces=False)
    goldens = []
    for text in sample_texts():
        ids = tokenizer(text)["input_ids"]
        goldens.append(
            {
                "text": text,
                "ids": ids,
                "decoded": tokenizer.decode(ids),
                "decoded_skipping": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    metadata, original_ids = _subset(document, {i for golden in goldens for i in golden["ids"]})
    _write(
        "tokenizer_goldens.json",
        {
            "source": "SmolLM2-135M-Instruct, transformers",
            "goldens": goldens,
            "subset_metadata": metadata,
            "subset_original_ids": original_ids,
        },
    )


def _subset(document: dict, used: set[int]) -> tuple[dict, list[int]]:
    """The part of the vocabulary that these ids need, as GGUF metadata, and the original id of each token.

    A merge that made none of the tokens was never applied, so leaving it out changes nothing here.
    """
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    special = [token["id"] for token in document["added_tokens"]]
    pieces = {piece for piece, i in vocab.items() if i in used or i in special or len(piece) == 1}
    kept = []
    for left, right in reversed(merges):
        if left + right in pieces:
            kept.append(f"{left} {right}")
            pieces |= {left, right}
    tokens = sorted(pieces, key=vocab.__getitem__)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if vocab[token] in special else 1 for token in tokens],
        "tokenizer.ggml.merges": kept[::-1],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.unknown_token_id": tokens.index("<|endoftext|>"),
    }
    return metadata, [vocab[token] for token in tokens]


def record_spm() -> None:
    import io

    import sentencepiece as spm

    model = io.BytesIO()
    corpus = [*sample_texts(), "the lift takes the skiers up the mountain", "another token in another batch"]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(
            [line for text in corpus for line in text.split("\n") if line.strip("\0 ")] * 3
        ),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.99,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
    )
    oracle = spm.SentencePieceProcessor(model_proto=model.getvalue())
    size = oracle.vocab_size()
    kinds = [
        2 if oracle.is_unknown(i) else 3 if oracle.is_control(i) else 6 if oracle.is_byte(i) else 1
        for i in range(size)
    ]
    # SentencePiece has no special tokens in text; texts that spell one are left to other tests.
    texts = [t for t in sample_texts() if not any(s in t for s in ("<s>", "</s>", "<unk>"))]
    goldens = [
        {"text": t, "ids": oracle.encode(t), "decoded": oracle.decode(oracle.encode(t))} for t in texts
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [oracle.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [oracle.get_score(i) for i in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    _write("spm_goldens.json", {"source": "sentencepiece", "metadata": metadata, "goldens": goldens})


def _write(name: str, document: object) -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / name).write_text(json.dumps(document, ensure_ascii=True, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record_spm() if sys.argv[1] == "spm" else record_smollm(sys.argv[2])
