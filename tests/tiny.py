"""A tiny random model with a byte-level tokenizer and a ChatML template in one GGUF file: an engine in a second."""

from __future__ import annotations

from pathlib import Path

from model.tiny_models import TinyModel

VOCAB_SIZE = 512
CONTEXT = 2048
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE vocabularies (GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def write_tiny_model(path: Path, *, type_name: str = "Q4_0", seed: int = 0) -> Path:
    """Write the model (2 layers, 4 heads, 2 KV heads, quantised matrices) and return its path."""
    tiny = TinyModel(vocab_size=VOCAB_SIZE, head_dim=16, type_name=type_name, seed=seed)
    image = tiny.gguf()
    words = ["ab", *(f"word{i}" for i in range(VOCAB_SIZE - 257 - len(CONTROL)))]
    tokens = CONTROL + byte_alphabet() + words
    image.metadata |= {
        "llama.context_length": CONTEXT,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (VOCAB_SIZE - len(CONTROL)),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    return image.write(path)
