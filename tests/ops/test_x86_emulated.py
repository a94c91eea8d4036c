"""x86 kernels for processors that the one at hand is not: AVX-VNNI and AMX, bit by bit against the generic kernels.

The kernels' own sources are compiled here with their intrinsics replaced by software (tests/native/x86/emulation.h),
and AVX-VNNI also with the encoding that AVX-512 has for the same instruction. Where the processor has the real thing,
the program runs that as well, and so do the other tests of this folder.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

native: Any = pytest.importorskip(
    "chairlift.ops._native", reason="the native module is not built (make native)"
)

ROOT = Path(__file__).parents[2]
EMULATION = ["-include", "tests/native/x86/emulation.h"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"]
AMX = [*AVX512, "-mamx-tile", "-mamx-int8"]
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-Icsrc", "-Icsrc/include", "-Wall", "-Wextra", "-Werror"]
# GCC's own headers of AVX-512 trip over these.
FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]
AVXVNNI_SOURCES = ("csrc/arch/avxvnni/linear_integer.cpp",)
AMX_SOURCES = ("csrc/arch/amx/linear_integer.cpp", "csrc/arch/avx512vnni/linear_integer.cpp")


@dataclass(frozen=True)
class Variant:
    name: str
    isa: str
    flags: list[str]
    sources: tuple[str, ...]
    needs: tuple[str, ...]  # of the processor


VARIANTS = [
    Variant(
        "avxvnni in software", "avxvnni", [*AVX2, *EMULATION, "-DEMULATE_AVXVNNI"], AVXVNNI_SOURCES, ("avx2",)
    ),
    Variant(
        "avxvnni encoded as avx512",
        "avxvnni",
        [*AVX512, *EMULATION, "-DEMULATE_AVXVNNI_BY_AVX512"],
        AVXVNNI_SOURCES,
        ("avx512_vnni",),
    ),
    Variant("avxvnni", "avxvnni", [*AVX2, "-mavxvnni"], AVXVNNI_SOURCES, ("avx_vnni",)),
    Variant("amx in software", "amx", [*AMX, *EMULATION, "-DEMULATE_AMX"], AMX_SOURCES, ("avx512_vnni",)),
]


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return done.stdout


def build(compiler: str, variant: Variant, folder: Path) -> Path:
    """The comparison, the generic kernels without any of the variant's instructions, and the variant's own."""
    plain = ["tests/native/x86/integer_panels.cpp", "csrc/kernels/integer_generic.cpp"]
    register = f"-DREGISTER_KERNELS=register_{variant.isa}_linear"
    jobs = [(source, [register]) for source in plain] + [
        (source, variant.flags) for source in variant.sources
    ]

    def compile_one(job: tuple[str, list[str]]) -> str:
        source, flags = job
        target = str(folder / source.replace("/", "_")) + ".o"
        run([compiler, *FLAGS, *flags, "-c", source, "-o", target])
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, jobs))
    program = folder / "integer_panels"
    run([compiler, *objects, "-o", str(program)])
    return program


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="kernels for x86")
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name.replace(" ", "-"))
def test_panels_give_the_bits_of_the_generic_ones(variant: Variant, tmp_path: Path) -> None:
    """1 to 70 rows, weights and activations at their limits: every accumulator is the generic kernel's."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler (g++)")
    found = dict(native.cpu_features())
    missing = [name for name in variant.needs if not found[name]]
    if missing:
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    report = run([str(build(compiler, variant, tmp_path))])
    assert report == f"{variant.isa}: {report.split()[1]} values equal\n"
