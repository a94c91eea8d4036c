"""What loading a model costs in memory."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from model.default_model_path import default_model_path
from model.tiny_models import TinyModel

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("chairlift.ops._native") is None, reason="the native module is not built"
)

LOAD = """
import re, sys
from pathlib import Path
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.cpu import CpuOps
model = load_model(open_model_files(sys.argv[1]), CpuOps(1, 64, 16), max_positions=1024)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


QUANTISE = """
import re, sys
from pathlib import Path
from chairlift.model.files import open_model_files
from chairlift.model.loader import load_model
from chairlift.ops.cpu import CpuOps
def kilobytes(field):
    return int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
files, ops = open_model_files(sys.argv[1]), CpuOps(1, 1, 1)
before = kilobytes("VmRSS")
model = load_model(files, ops, quantization="q4")
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.model
def test_peak_memory_stays_under_twice_the_file() -> None:
    """A whole process that loads the default model never holds more than twice the file: packed, not dequantised."""
    path = default_model_path()
    output = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], check=True, capture_output=True, timeout=60
    )
    assert int(output.stdout) * 1024 < 2 * path.stat().st_size


def test_quantising_never_holds_the_floats(tmp_path: Path) -> None:
    """Loading f32 weights as 4 bits takes the 4-bit model and a tensor or two, far less than the file."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_heads": 4, "num_kv_heads": 4, "head_dim": 64}
    folder = TinyModel(vocab_size=512, num_layers=16, **sizes).write_folder(tmp_path)
    output = subprocess.run(
        [sys.executable, "-c", QUANTISE, str(folder)], check=True, capture_output=True, timeout=60
    )
    assert int(output.stdout) * 1024 < 0.4 * (folder / "model.safetensors").stat().st_size
