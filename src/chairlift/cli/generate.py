"""`chairlift generate PROMPT`: one completion; only the text goes to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import sys

from chairlift.cli.flags import add_engine_flags, add_model_option
from chairlift.cli.sampling import add_sampling_flags, sampling_params
from chairlift.cli.session import open_llm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `generate`."""
    parser.add_argument("prompt", help='text to complete, or "-" to read it from standard input')
    add_model_option(parser)
    parser.add_argument(
        "--chat", action="store_true", help="wrap the prompt in the chat template as a user message"
    )
    add_sampling_flags(parser, max_tokens=128, temperature=0.0)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Complete the prompt and print the text."""
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with open_llm(args) as llm:
        params = sampling_params(args)
        if args.chat:
            (output,) = llm.chat([{"role": "user", "content": prompt}], params, use_tqdm=False)
        else:
            (output,) = llm.generate(prompt, params, use_tqdm=False)
    print(output.outputs[0].text)
    return 0
