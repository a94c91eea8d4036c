"""What `chairlift inspect` found, as JSON or as text for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from chairlift.model.files import ModelFiles
    from chairlift.model.inspection import Loss
    from chairlift.model.weights.mapped import TensorInfo


class Report(NamedTuple):
    """All that is printed, in either form."""

    files: ModelFiles
    quantization: str | None
    tensors: list[tuple[TensorInfo, Loss | None]]
    notices: list[str]


def _totals(report: Report) -> tuple[int, int, int, Loss | None]:
    """Weights of the model, their bytes in the file and when loaded, and what all quantised tensors lose together."""
    from chairlift.model.inspection import Loss

    losses = [loss for _, loss in report.tensors if loss is not None]
    return (
        sum(math.prod(info.shape) for info, _ in report.tensors),
        sum(info.num_bytes for info, _ in report.tensors),
        sum(info.num_bytes if loss is None else loss.num_bytes for info, loss in report.tensors),
        Loss.total(losses) if losses else None,
    )


def _loss_fields(loss: Loss) -> dict[str, Any]:
    return {
        "type": loss.type_name,
        "bytes": loss.num_bytes,
        "bits_per_weight": loss.bits_per_weight,
        "relative_rms_error": loss.relative_rms_error,
        "largest_error": loss.largest_error,
    }


def document(report: Report) -> dict[str, Any]:
    """For `--json`."""
    spec, (weights, num_bytes, loaded_bytes, loss) = report.files.spec, _totals(report)
    found: dict[str, Any] = {
        "path": str(report.files.path),
        "name": report.files.name,
        "architecture": spec.architecture,
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "max_positions": spec.max_positions,
        "weights": weights,
        "bytes": num_bytes,
        "bits_per_weight": 8 * num_bytes / max(weights, 1),
        "tensors": [
            {
                "name": info.name,
                "type": info.type_name,
                "shape": list(info.shape),
                "bytes": info.num_bytes,
                **({"quantized": _loss_fields(each)} if each else {}),
            }
            for info, each in report.tensors
        ],
    }
    if report.quantization:
        found["quantization"] = {
            "method": report.quantization,
            "bytes": loaded_bytes,
            "bits_per_weight": 8 * loaded_bytes / max(weights, 1),
            "quantized": _loss_fields(loss) if loss else None,
            "notices": report.notices,
        }
    return found


def text(report: Report) -> str:
    """A summary, and a table with a line for each tensor."""
    rows = [_HEAD[: None if report.quantization else 4]]
    rows += [_cells(info, loss, report.quantization) for info, loss in report.tensors]
    return "\n".join([*_summary(report), "", *_table(rows)])


def _summary(report: Report) -> list[str]:
    spec, (weights, num_bytes, loaded_bytes, loss) = report.files.spec, _totals(report)
    types = Counter(info.type_name for info, _ in report.tensors)
    counts = ", ".join(f"{count} {name}" for name, count in types.most_common())
    lines = [
        str(report.files.path),
        f"  architecture  {spec.architecture}",
        f"  layers        {spec.num_layers} of {spec.hidden_size}, MLP {spec.intermediate_size}",
        f"  heads         {spec.num_heads}, {spec.num_kv_heads} for K and V, of {spec.head_dim}",
        f"  vocabulary    {spec.vocab_size:,}",
        f"  context       {spec.max_positions:,} tokens",
        f"  weights       {_size(weights, num_bytes)}",
        f"  tensors       {len(report.tensors)}: {counts}",
    ]
    if loss is not None:
        lines += [
            f"  with {report.quantization}       {_size(weights, loaded_bytes)}",
            f"  loss          relative RMS error {loss.relative_rms_error:.3%}, largest {loss.largest_error:.3g}",
        ]
    return [*lines, *(f"  note: {notice}" for notice in report.notices)]


def _size(weights: int, num_bytes: int) -> str:
    return f"{weights:,} in {num_bytes / 2**20:,.1f} MiB, {8 * num_bytes / max(weights, 1):.2f} bits each"


_HEAD = ("tensor", "type", "shape", "bytes", "becomes", "bits", "rel. RMS error", "largest error")


def _cells(info: TensorInfo, loss: Loss | None, quantization: str | None) -> tuple[str, ...]:
    cells = (info.name, info.type_name, " x ".join(map(str, info.shape)), f"{info.num_bytes:,}")
    if quantization is None:
        return cells
    if loss is None:
        return (*cells, "-", "-", "-", "-")
    return (
        *cells,
        loss.type_name,
        f"{loss.bits_per_weight:.1f}",
        f"{loss.relative_rms_error:.3%}",
        f"{loss.largest_error:.3g}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell; text to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = ("tensor", "type", "becomes")
    return [
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for cell, width, head in zip(row, widths, rows[0], strict=True)
        ).rstrip()
        for row in rows
    ]
