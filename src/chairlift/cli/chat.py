"""`chairlift chat`: a conversation in the terminal, answers streamed as they are generated."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from chairlift.cli.flags import add_engine_flags, add_model_option
from chairlift.cli.sampling import add_sampling_flags, sampling_params
from chairlift.cli.session import open_llm
from chairlift.errors import RequestError

if TYPE_CHECKING:
    from chairlift.llm import LLM

_HELP = "/clear forgets the conversation, /exit or Ctrl-D leaves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `chat`."""
    add_model_option(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message (default: the template's own)")
    add_sampling_flags(parser, max_tokens=None, temperature=0.2)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Read a line, stream the answer, until the end of input."""
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages = list(opening)
    with open_llm(args) as llm:
        print(f"{llm.info.model_name} ready; {_HELP}", file=sys.stderr)
        while (line := _read_line()) is not None:
            if line in ("/exit", "/quit"):
                break
            if line == "/clear":
                messages = list(opening)
                continue
            if line:
                _answer(llm, messages, line, args)
    return 0


def _read_line() -> str | None:
    try:
        prompt = "> " if sys.stdin.isatty() else ""
        return input(prompt).strip()
    except EOFError:
        return None


def _answer(llm: LLM, messages: list[dict[str, str]], line: str, args: argparse.Namespace) -> None:
    """Stream one answer and add both sides to the conversation; a refused turn is reported and dropped."""
    messages.append({"role": "user", "content": line})
    pieces: list[str] = []
    try:
        for delta in llm.stream_chat(messages, sampling_params(args)):
            pieces.append(delta.text)
            print(delta.text, end="", flush=True)
    except RequestError as error:
        print(f"refused: {error}", file=sys.stderr)
        messages.pop()
        return
    except KeyboardInterrupt:  # cut the answer short, keep the conversation
        pass
    print()
    messages.append({"role": "assistant", "content": "".join(pieces)})
