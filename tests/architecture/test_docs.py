"""The pages tell the truth about files: links lead somewhere, named paths and commands exist, snippets run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chairlift.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:src|tests|docs|benchmarks|csrc|tools|\.ci)/[\w./-]+)`")
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository."""
    targets = [t for t in LINK.findall(page.read_text()) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_named_paths_exist(page: Path) -> None:
    """A path in backticks is there."""
    assert [p for p in PATH.findall(page.read_text()) if not (ROOT / p).exists()] == []


def test_the_readmes_tree_is_the_tree() -> None:
    """Each folder and file that the README's tree names exists, and no package is left out."""
    tree = re.search(r"```\nsrc/chairlift/\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree is not None
    lines = tree[1].splitlines()
    inner = {line.split()[0].rstrip("/") for line in lines if line.startswith("  ")}
    outer = {line.split()[0] for line in lines if line and not line.startswith(" ")}
    package = ROOT / "src" / "chairlift"
    assert {p.name for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"} <= inner
    assert all((package / name).exists() for name in inner)
    assert all((ROOT / name).exists() for name in outer)


def test_every_command_in_the_readme_exists() -> None:
    """`chairlift WORD` in the README is a command of ours."""
    words = set(re.findall(r"(?:`|/)chairlift (\w+)", (ROOT / "README.md").read_text()))
    assert words
    assert words <= set(COMMANDS)


@pytest.mark.model
def test_the_readmes_python_runs(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The offline snippet does what it says, on the default model."""
    (snippet,) = [
        code
        for code in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "import LLM" in code
    ]
    exec(compile(snippet.replace("LLM()", f"LLM({str(default_model)!r})"), "README.md", "exec"), {})
    assert len(capsys.readouterr().out.strip()) > 20
