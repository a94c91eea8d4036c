"""Draws a paired comparison (the files of compare.py) as horizontal bars, one group per mode, in one SVG.

    python benchmarks/chart.py --modes w64 --out docs/images/peers.svg benchmarks/results/w64-peers.json

Bars are medians; thin lines reach from the lowest to the highest round. Engines are named by --names "id=Label,...".
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

_OURS, _THEIRS, _INK, _SOFT = "#3d7ea6", "#cfc6b8", "#2b2b2b", "#8a8378"
_LEFT, _PLOT, _RIGHT, _BAR, _GAP, _HEAD = 250, 470, 150, 22, 9, 54


@dataclass(frozen=True)
class Bar:
    """One engine in one mode."""

    label: str
    ours: bool
    median: float
    low: float
    high: float
    note: str


def read_bars(paths: list[Path], mode: str, names: dict[str, str]) -> list[Bar]:
    """All engines of a mode, fastest first; an engine that is in several files counts once, the first time."""
    found: dict[str, Bar] = {}
    for path in paths:
        for row in json.loads(path.read_text())["rows"]:
            engine = str(row["engine"])
            if row["mode"] != mode or engine in found:
                continue
            values = [float(v) for v in row["all"]]
            memory = float(row.get("peak_rss_mb") or 0)
            note = f"{memory:,.0f} MB" if memory else ""
            label = names.get(engine, engine)
            median = sorted(values)[len(values) // 2]
            found[engine] = Bar(label, "chairlift" in engine, median, min(values), max(values), note)
    return sorted(found.values(), key=lambda bar: -bar.median)


def draw_group(title: str, bars: list[Bar], top: int) -> list[str]:
    """SVG of one mode, its bars on a scale of their own."""
    scale = _PLOT / max(bar.high for bar in bars)
    parts = [f'<text x="12" y="{top + 18}" font-weight="600" fill="{_INK}">{escape(title)}</text>']
    for index, bar in enumerate(bars):
        y = top + 32 + index * (_BAR + _GAP)
        middle, text_y = y + _BAR / 2, y + _BAR - 6
        weight = ' font-weight="600"' if bar.ours else ""
        value = f"{bar.median:,.0f}" + (f"  ({bar.note})" if bar.note else "")
        parts += [
            f'<text x="{_LEFT - 8}" y="{text_y}" text-anchor="end" fill="{_INK}"{weight}>{escape(bar.label)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{bar.median * scale:.1f}" height="{_BAR}" rx="2"'
            f' fill="{_OURS if bar.ours else _THEIRS}"/>',
            f'<line x1="{_LEFT + bar.low * scale:.1f}" x2="{_LEFT + bar.high * scale:.1f}" y1="{middle}" y2="{middle}"'
            f' stroke="{_INK}"/>',
            f'<text x="{_LEFT + bar.high * scale + 8:.1f}" y="{text_y}" fill="{_INK}"{weight}>{escape(value)}</text>',
        ]
    return parts


def draw(groups: list[tuple[str, list[Bar]]], caption: str) -> str:
    """The whole picture."""
    body: list[str] = []
    top = 12
    for title, bars in groups:
        body += draw_group(title, bars, top)
        top += _HEAD + len(bars) * (_BAR + _GAP)
    width, height = _LEFT + _PLOT + _RIGHT, top + 24
    body.append(f'<text x="12" y="{top + 6}" font-size="12" fill="{_SOFT}">{escape(caption)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="14">\n<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--modes", default="w64", help='e.g. "w64,decode N=64"')
    parser.add_argument("--names", default="", help="engine=Label,...")
    parser.add_argument("--titles", default="", help="mode=Title,...")
    parser.add_argument("--caption", default="")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    names = dict(pair.split("=", 1) for pair in args.names.split(",") if "=" in pair)
    titles = dict(pair.rsplit("=", 1) for pair in args.titles.split(",") if "=" in pair)
    groups = []
    for mode in args.modes.split(","):
        bars = read_bars(args.results, mode, names)
        if not bars:
            sys.exit(f"no rows of mode {mode!r} in {', '.join(map(str, args.results))}")
        groups.append((titles.get(mode, mode), bars))
    args.out.write_text(draw(groups, args.caption))


if __name__ == "__main__":
    main()
