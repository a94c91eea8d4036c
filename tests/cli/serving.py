"""A `chairlift serve` of its own for a test: a real server process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SMALL = ["--num-kv-blocks", "64", "--max-model-len", "512", "--threads", "1"]


@contextmanager
def serving(model: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """(url, banner) of a server on a free port; stopped with SIGINT, which must be a clean exit."""
    process = subprocess.Popen(
        [sys.executable, "-m", "chairlift", "serve", str(model), "--port", "0", *SMALL, *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stderr is not None
    try:
        banner = ""
        while " try: " not in banner:
            line = process.stderr.readline()
            if not line:
                pytest.fail(f"the server ended early: {banner}")
            banner += line
        found = re.search(r"on (http://\S+)", banner)
        assert found is not None
        yield found[1], banner
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
        process.stderr.close()
    assert code == 0
