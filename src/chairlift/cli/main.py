"""`chairlift COMMAND`: parses the command line and hands over; every command imports its own machinery late."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from chairlift import __version__
from chairlift.errors import ChairliftError


class Command(NamedTuple):
    """A sub-command: its module has `add_arguments(parser)` and `run(args) -> int`."""

    module: str
    help: str
    usage: str | None = None  # in place of a list of every flag; None: argparse's own


COMMANDS = {
    "serve": Command(
        "chairlift.cli.serve",
        "OpenAI-compatible HTTP server for one model",
        "chairlift serve [MODEL] [options]",
    ),
    "generate": Command(
        "chairlift.cli.generate",
        "complete one prompt, print only the text",
        "chairlift generate PROMPT [options]",
    ),
    "chat": Command("chairlift.cli.chat", "talk to a model in the terminal", "chairlift chat [options]"),
    "bench": Command(
        "chairlift.cli.bench", "measurements: throughput, a server under load, who rode in which step"
    ),
    "inspect": Command(
        "chairlift.cli.inspect",
        "what a model file is, and what quantising it would cost",
        "chairlift inspect [MODEL] [options]",
    ),
    "env": Command("chairlift.cli.env", "what was found on this machine: versions, kernels, memory"),
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
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, each in COMMANDS.items():
        child = commands.add_parser(
            name,
            help=each.help,
            usage=each.usage,
            description=each.help[0].upper() + each.help[1:] + ".",
            formatter_class=_HelpFormatter,
        )
        if name == command:
            import_module(each.module).add_arguments(child)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """Refuses what it does not know itself, so that the usage shown is the command's (its sub-commands' likewise)."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Flags and their help on one line where they fit."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def main(argv: Sequence[str] | None = None) -> int:
    """The `chairlift` script; returns its exit code: 0 ok, 2 wrong flag, 3 bad model, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if word in COMMANDS), None)
    args = build_parser(command).parse_args(arguments)
    try:
        return int(import_module(COMMANDS[args.command].module).run(args))
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
