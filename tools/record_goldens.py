"""Record what Hugging Face transformers computes with the default model, for tests/model/test_goldens.py.

    python tools/record_goldens.py PATH_OF_SmolLM2-135M-Instruct.Q4_1.gguf      (needs the extra `hf`)

transformers dequantises the GGUF to f32 and runs in f32. Of each prompt we keep the last position's 64 largest logits
and those of 512 fixed vocabulary ids, then 64 greedy tokens with each step's best logit and its lead over the second.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "tests/data/goldens/smollm2-135m-instruct-q4_1.npz"
NUM_TOP, NUM_SAMPLED, NUM_GREEDY = 64, 512, 64
SEED = 20

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
)
CODE = '''def fibonacci(n: int) -> list[int]:
    """The first n Fibonacci numbers."""
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]


if __name__ == "__main__":
    print(fibonacci(2024))
'''
TABLE = '{"name": "Ada", "born": 1815, "tags": ["math", "poetry"], "rate": 0.875}\n| x | y |\n|---|---|\n| 12 | 144 |\n'
LANGUAGES = (
    "Élan vital, crème brûlée; Übermut tut selten gut; ¿Dónde está la biblioteca? "
    "世界は広い。 Привет, мир! 😀🚠 Καλημέρα, шоколад, 你好。"
)
STORY = "Once upon a time, in a small village below the mountains, there lived a man who built the first chairlift."

# (text, tokens kept of it; 0 = all). Lengths stand around the sizes of blocks, tiles and splits.
SHORT = [
    ("The", 1),
    ("The capital", 2),
    ("The capital of France is", 5),
    ("1, 1, 2, 3, 5, 8, 13,", 15),
    (STORY, 16),
    (STORY, 17),
    (LANGUAGES, 31),
    (LANGUAGES, 0),
    (CHAT, 0),
    (TABLE, 0),
    (CODE, 64),
    (CODE, 0),
]
LONG = [(0, 127), (400, 128), (900, 200), (300, 255), (0, 257), (1100, 513), (700, 1000), (0, 1500)]


def main() -> None:
    """Record and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("gguf", type=Path, help="the default model's GGUF file")
    path = parser.parse_args().gguf
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    prompts = make_prompts(tokenizer)
    sampled_ids = np.sort(
        np.random.default_rng(SEED).choice(model.config.vocab_size, NUM_SAMPLED, replace=False)
    )
    rows = [record(model, prompt, sampled_ids) for prompt in prompts]
    arrays: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    arrays["prompt_ids"] = np.concatenate(prompts).astype(np.int32)  # [sum of lengths]
    arrays["prompt_lens"] = np.array([len(prompt) for prompt in prompts], np.int32)  # [prompts]
    arrays["sampled_ids"] = sampled_ids.astype(np.int32)  # [512]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(OUTPUT, **arrays)
    print(f"{OUTPUT.relative_to(ROOT)}: {len(prompts)} prompts of {arrays['prompt_lens'].tolist()} tokens")


def make_prompts(tokenizer: Any) -> list[list[int]]:
    """20 prompts of 1 to 1500 tokens: texts of several kinds, and stretches of the licence."""
    prompts = []
    for text, length in SHORT:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append(ids[: length or None])
    licence = tokenizer((ROOT / "LICENSE").read_text(), add_special_tokens=False)["input_ids"]
    for start, length in LONG:
        ids = licence[start : start + length]
        if len(ids) != length:
            raise SystemExit(f"LICENSE has {len(licence)} tokens, too few for {start} + {length}")
        prompts.append(ids)
    return prompts


@torch.no_grad()
def record(model: Any, prompt: list[int], sampled_ids: np.ndarray) -> dict[str, np.ndarray]:
    """One prompt's arrays; all f32 and int32."""
    output = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    logits = output.logits[0, -1]  # [vocab]
    top = torch.topk(logits, NUM_TOP)
    sampled = logits.numpy()[sampled_ids]
    tokens, best, lead = [], [], []
    for _ in range(NUM_GREEDY):
        two = torch.topk(logits, 2)
        tokens.append(int(two.indices[0]))
        best.append(float(two.values[0]))
        lead.append(float(two.values[0] - two.values[1]))
        if len(tokens) < NUM_GREEDY:
            output = model(
                torch.tensor([tokens[-1:]]), past_key_values=output.past_key_values, use_cache=True
            )
            logits = output.logits[0, -1]
    return {
        "top_ids": top.indices.numpy().astype(np.int32),
        "top_logits": top.values.numpy(),
        "sampled_logits": sampled,
        "greedy_ids": np.array(tokens, np.int32),
        "greedy_logits": np.array(best, np.float32),
        "greedy_leads": np.array(lead, np.float32),
    }


if __name__ == "__main__":
    main()
