"""What loading the default model costs in memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from model.default_model_path import default_model_path

pytestmark = pytest.mark.model

LOAD = """
import re, sys
from pathlib import Path
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.cpu import CpuOps
model = load_model(open_model_files(sys.argv[1]), CpuOps(1, 64, 16), max_positions=1024)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(
    importlib.util.find_spec("chairlift.ops._native") is None, reason="the native module is not built"
)
def test_peak_memory_stays_under_twice_the_file() -> None:
    """A whole process that loads the default model never holds more than twice the file: packed, not dequantised."""
    path = default_model_path()
    output = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, timeout=60
    )
    assert int(output.stdout) * 1024 < 2 * path.stat().st_size
