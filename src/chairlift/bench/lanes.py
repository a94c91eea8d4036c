"""A picture of continuous batching: one lane per request, time to the right, and how full each step was.

`record` runs a workload on a real engine and keeps every step's frame; `draw` turns frames into an SVG. Only what the
engine reports is drawn: a lane starts when its request arrives, shows its wait, its prompt chunks and its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from chairlift.bench.workload import WorkItem
from chairlift.engine.engine import Engine
from chairlift.engine.failures import error_named
from chairlift.engine.types import EngineRequest, StepFrame
from chairlift.errors import ConfigError
from chairlift.sampling_params import SamplingParams

_PROMPT, _DECODE, _WAIT, _INK, _GRID = "#e8a33d", "#3d7ea6", "#d9d4cb", "#2b2b2b", "#ececec"
_LANE_H, _LEFT, _PLOT_W, _FILL_H = 13, 92, 960, 90


@dataclass(slots=True)
class Lane:
    """One request's life, in seconds since the start of the run."""

    arrival: float
    # (start, end, prompt tokens, generated tokens computed) of each step it rode in
    rides: list[tuple[float, float, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Recording:
    """Everything `draw` needs of a run."""

    lanes: list[Lane]
    steps: list[tuple[float, float, int, int]]  # start, end, prompt tokens, generated tokens
    token_budget: int
    title: str


def record(engine: Engine, items: Sequence[WorkItem], *, token_budget: int, title: str) -> Recording:
    """Offer each item at its arrival time, step until all are answered, and keep what each step did.

    Raises:
        ConfigError: an item has a token id outside the vocabulary.
        RequestError: the engine refuses an item; the message names it by its place.
    """
    _check_vocabulary(items, engine.info.vocab_size)
    start = time.monotonic()
    pending = sorted(enumerate(items), key=lambda pair: pair[1].arrival_s)
    frames: list[StepFrame] = []
    while pending or engine.has_unfinished():
        now = time.monotonic() - start
        while pending and pending[0][1].arrival_s <= now:
            index, item = pending.pop(0)
            engine.add_request(_request(index, item))
        frame = engine.step()
        if frame is not None:
            _check_accepted(frame)
            frames.append(frame)
        elif pending:
            time.sleep(max(0.0, pending[0][1].arrival_s - (time.monotonic() - start)))
    return _recording(frames, items, start, token_budget, title)


def _check_vocabulary(items: Sequence[WorkItem], vocab_size: int) -> None:
    for index, item in enumerate(items):
        wrong = [token_id for token_id in item.prompt_token_ids if not 0 <= token_id < vocab_size]
        if wrong:
            raise ConfigError(
                f"request {index} has token id {wrong[0]}, outside the model's vocabulary [0, {vocab_size})"
            )


def _check_accepted(frame: StepFrame) -> None:
    for update in frame.updates:
        if update.finish_reason == "error":
            raise error_named(update.error_code or "", f"request {update.request_id}: {update.error}")


def _request(index: int, item: WorkItem) -> EngineRequest:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=item.max_tokens,
        min_tokens=item.max_tokens,
        ignore_eos=True,
        detokenize=False,
    )
    return EngineRequest(str(index), item.prompt_token_ids, params, seed=0)


def _recording(
    frames: Sequence[StepFrame], items: Sequence[WorkItem], start: float, token_budget: int, title: str
) -> Recording:
    lanes = [Lane(item.arrival_s) for item in items]
    steps = []
    for frame in frames:
        begin, end = frame.started_at - start, frame.finished_at - start
        prompt_total = generated_total = 0
        for row in frame.rows:
            prompt_left = len(items[int(row.request_id)].prompt_token_ids) - row.num_computed_tokens
            prompt = min(row.num_scheduled_tokens, max(0, prompt_left))
            lanes[int(row.request_id)].rides.append((begin, end, prompt, row.num_scheduled_tokens - prompt))
            prompt_total += prompt
            generated_total += row.num_scheduled_tokens - prompt
        steps.append((begin, end, prompt_total, generated_total))
    return Recording(lanes, steps, token_budget, title)


def draw(recording: Recording) -> str:
    """An SVG document: lanes above, tokens per step against the budget below."""
    lanes = sorted(recording.lanes, key=lambda lane: lane.arrival)
    total = max((end for _, end, _, _ in recording.steps), default=1.0)
    scale = _PLOT_W / total
    lanes_top = 70
    lanes_h = len(lanes) * _LANE_H
    fill_top = lanes_top + lanes_h + 34
    height = fill_top + _FILL_H + 44
    parts = [_header(height, recording.title), *_time_grid(total, scale, lanes_top, fill_top + _FILL_H)]
    for row, lane in enumerate(lanes):
        parts.extend(_draw_lane(lane, lanes_top + row * _LANE_H, scale))
    parts.append(_text(_LEFT - 8, lanes_top + lanes_h / 2, "requests", anchor="end"))
    parts.extend(_draw_fill(recording, scale, fill_top))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _header(height: float, title: str) -> str:
    width = _LEFT + _PLOT_W + 24
    legend = [("waiting", _WAIT), ("prompt tokens", _PROMPT), ("generated tokens", _DECODE)]
    marks = "".join(
        f'<rect x="{_LEFT + 150 * i}" y="40" width="11" height="11" fill="{color}"/>'
        + _text(_LEFT + 150 * i + 17, 50, name)
        for i, (name, color) in enumerate(legend)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">\n'
        f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>\n'
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">{escape(title)}</text>\n{marks}'
    )


def _time_grid(total: float, scale: float, top: float, bottom: float) -> list[str]:
    step = next((s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60) if total / s <= 12), 120)
    parts = []
    for i in range(int(total / step) + 1):
        x = _LEFT + i * step * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{bottom:.0f}" stroke="{_GRID}"/>')
        parts.append(_text(x, bottom + 18, f"{i * step:g} s", anchor="middle"))
    return parts


def _draw_lane(lane: Lane, y: float, scale: float) -> list[str]:
    """The wait as a thin line, then one mark a step; neighbouring steps of one kind are drawn as one bar."""
    height = _LANE_H - 3
    first = lane.rides[0][0] if lane.rides else lane.arrival
    wait_x, wait_w = _LEFT + lane.arrival * scale, max(0.0, first - lane.arrival) * scale
    parts = [
        f'<rect x="{wait_x:.1f}" y="{y + height / 2 - 1:.1f}" width="{wait_w:.1f}" height="2" fill="{_WAIT}"/>'
    ]
    for begin, end, is_prompt in _bars(lane.rides):
        color = _PROMPT if is_prompt else _DECODE
        x, w = _LEFT + begin * scale, max(0.8, (end - begin) * scale)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{height}" rx="1.5" fill="{color}"/>'
        )
    return parts


def _bars(rides: Sequence[tuple[float, float, int, int]]) -> list[tuple[float, float, bool]]:
    bars: list[tuple[float, float, bool]] = []
    for begin, end, prompt, _ in rides:
        is_prompt = prompt > 0
        if bars and bars[-1][2] == is_prompt and begin - bars[-1][1] < 0.02:
            bars[-1] = (bars[-1][0], end, is_prompt)
        else:
            bars.append((begin, end, is_prompt))
    return bars


def _draw_fill(recording: Recording, scale: float, top: float) -> list[str]:
    """Tokens of each step, stacked, against the budget line."""
    bottom, unit = top + _FILL_H, _FILL_H / max(1, recording.token_budget)
    parts = [
        f'<line x1="{_LEFT}" y1="{top}" x2="{_LEFT + _PLOT_W}" y2="{top}" stroke="{_INK}" stroke-dasharray="4 3"/>',
        _text(_LEFT - 8, top + 4, f"budget {recording.token_budget}", anchor="end", size=10),
        _text(_LEFT - 8, bottom, "tokens/step", anchor="end", size=10),
    ]
    for begin, end, prompt, generated in recording.steps:
        x, w = _LEFT + begin * scale, max(0.4, (end - begin) * scale)
        prompt_h, generated_h = prompt * unit, generated * unit
        parts.append(_box(x, bottom - generated_h, w, generated_h, _DECODE))
        parts.append(_box(x, bottom - generated_h - prompt_h, w, prompt_h, _PROMPT))
    return parts


def _box(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" fill="{color}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
