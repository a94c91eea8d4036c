"""`chairlift COMMAND`: parses the command line and hands over; every command imports its own machinery late."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from chairlift import __version__
from chairlift.errors import ChairliftError

# command -> (module with `add_arguments(parser)` and `run(args) -> int`, one line for --help)
COMMANDS = {
    "serve": ("chairlift.cli.serve", "OpenAI-compatible HTTP server for one model"),
    "generate": ("chairlift.cli.generate", "complete one prompt, print only the text"),
    "chat": ("chairlift.cli.chat", "talk to a model in the terminal"),
    "bench": ("chairlift.cli.bench", "pictures of a run: who rode in which step (`bench lanes`)"),
    "env": ("chairlift.cli.env", "what was found on this machine: versions, kernels, memory"),
}

_EPILOG = """examples:
  chairlift serve                                   the built-in default model on http://127.0.0.1:8000
  chairlift serve ./model.gguf --port 9000          your own model
  chairlift generate "The capital of France is"     one completion on stdout

`chairlift COMMAND --help` explains each command."""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line; only `command`'s own arguments are filled in, so the others' modules stay unimported."""
    parser = argparse.ArgumentParser(
        prog="chairlift",
        description="Serve LLMs with continuous batching: requests get on and off at every token step.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, help_line) in COMMANDS.items():
        child = commands.add_parser(
            name,
            help=help_line,
            description=help_line[0].upper() + help_line[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == command:
            import_module(module).add_arguments(child)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The `chairlift` script; returns its exit code: 0 ok, 2 wrong flag, 3 bad model, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if word in COMMANDS), None)
    args = build_parser(command).parse_args(arguments)
    try:
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except ChairliftError as error:
        print(f"chairlift {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # e.g. `chairlift generate ... | head -1`
        sys.stderr.close()
        return 0


if __name__ == "__main__":
    sys.exit(main())
