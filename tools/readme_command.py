"""Print the shell command under a marker in README.md, so that CI runs what people are told to run.

    python tools/readme_command.py test

finds `<!-- command: test -->` and prints the ```sh block that follows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def command(name: str) -> str:
    """The shell lines marked `name`; exits when there are none."""
    match = re.search(
        rf"<!-- command: {re.escape(name)} -->\s*```sh\n(.*?)```", README.read_text(), re.DOTALL
    )
    if not match:
        sys.exit(f"{README} has no command marked {name!r}")
    return match[1].strip()


if __name__ == "__main__":
    print(command(sys.argv[1]))
