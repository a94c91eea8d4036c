"""The pages tell the truth about files: links lead somewhere, named paths and commands exist, snippets run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chairlift.cli.main import COMMANDS
from cli.serving import serving

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
    package, folder, packages = ROOT / "src" / "chairlift", ROOT / "src" / "chairlift", set()
    for line in tree[1].splitlines():
        names = re.findall(r"[\w.]+(?:/|\.py\b)", re.split(r"\s{2,}", line.strip())[0])
        base = {0: ROOT, 2: package}.get(len(line) - len(line.lstrip()), folder)
        assert names, line
        assert [name for name in names if not (base / name).exists()] == []
        if base is package and names[0].endswith("/"):
            folder = package / names[0]
            packages.add(names[0].rstrip("/"))
    assert packages == {p.name for p in package.iterdir() if p.is_dir() and p.name != "__pycache__"}


def test_every_command_in_the_readme_exists() -> None:
    """`chairlift WORD` in the README is a command of ours."""
    words = set(re.findall(r"(?:`|/)chairlift (\w+)", (ROOT / "README.md").read_text()))
    assert words
    assert words <= set(COMMANDS)


def snippet(marker: str) -> str:
    """The README's Python block that has `marker` in it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if marker in block]
    return str(found)


@pytest.mark.model
def test_the_readmes_llm_snippet_runs(default_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The offline snippet does what it says, on the default model."""
    code = snippet("import LLM").replace("LLM()", f"LLM({str(default_model)!r})")
    exec(compile(code, "README.md", "exec"), {})
    assert len(capsys.readouterr().out.strip()) > 20


def test_the_readmes_client_snippet_runs(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The client snippet works against a server of ours, whatever the model is called."""
    with serving(tiny_model) as (url, _):
        exec(compile(snippet("import OpenAI").replace("http://127.0.0.1:8000", url), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
