"""64-bit Arm without an Arm machine: the kernels are cross-compiled and compared bit by bit under an emulator.

Needs a compiler for it (`aarch64-linux-gnu-g++`, or the `ziglang` package) and `qemu-aarch64`. On an Arm machine the
other tests of this folder run the same kernels natively.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # half a minute of processor time

ROOT = Path(__file__).parents[2]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
NUMERICS = ["-ffp-contract=off", "-fno-fast-math"]
FLAGS = [
    *WARNINGS,
    *NUMERICS,
    "-std=c++17",
    "-O2",
    "-pthread",
    "-DCHAIRLIFT_HAVE_NEON",
    "-Icsrc",
    "-Icsrc/include",
]
FOLDERS = ("csrc/runtime", "csrc/kernels", "csrc/arch/neon", "csrc/arch/neondot", "tests/native")


class Compiler(NamedTuple):
    """A C++ compiler for 64-bit Arm, and how it spells what csrc/arch/neondot is compiled for."""

    command: list[str]
    dot_products: str


def cross_compiler() -> Compiler | None:
    if gcc := shutil.which("aarch64-linux-gnu-g++"):
        return Compiler([gcc], "-march=armv8.2-a+dotprod")
    if importlib.util.find_spec("ziglang"):
        zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl"]
        return Compiler(zig, "-mcpu=generic+v8_2a+dotprod")
    return None


def build(compiler: Compiler, folder: Path) -> Path:
    """Every native source but the bindings, with warnings as errors, linked with the comparison."""
    sources = [source for name in FOLDERS for source in sorted((ROOT / name).glob("*.cpp"))]

    def compile_one(source: Path) -> str:
        target = str(folder / f"{source.parent.name}_{source.name}.o")
        flags = [*FLAGS, compiler.dot_products] if source.parent.name == "neondot" else FLAGS
        run([*compiler.command, *flags, "-c", str(source.relative_to(ROOT)), "-o", target])
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources))
    program = folder / "same_bits"
    run([*compiler.command, "-static", "-pthread", *objects, "-o", str(program)])
    return program


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = cross_compiler()
    if compiler is None:
        pytest.skip("no compiler for 64-bit Arm (aarch64-linux-gnu-g++ or the ziglang package)")
    return build(compiler, tmp_path_factory.mktemp("arm"))


def test_everything_but_the_bindings_compiles_without_a_warning(program: Path) -> None:
    """The native sources are portable C++ for 64-bit Arm too."""
    assert program.is_file()


def test_neon_kernels_give_the_bits_of_the_generic_ones(program: Path) -> None:
    """Every layout, many shapes, gates at the ends of their range: all values equal under the emulator."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("no emulator for 64-bit Arm (qemu-aarch64, Debian's package qemu-user)")
    report = run([emulator, str(program), "neon", "neondot"])
    assert "neon: linear neon, linear int8 neon\nneondot: linear neon, linear int8 neondot\n" in report
