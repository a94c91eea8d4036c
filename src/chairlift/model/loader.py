"""From files to a model that is ready to run."""

from __future__ import annotations

from chairlift.errors import ModelLoadError
from chairlift.model.base import Model
from chairlift.model.files import ModelFiles
from chairlift.model.registry import Family, family_of, resolve
from chairlift.model.weights.gguf import GGUFHeader
from chairlift.model.weights.source import WeightSource
from chairlift.ops.interface import Ops


def load_model(files: ModelFiles, ops: Ops, max_positions: int | None = None) -> Model:
    """Pack the weights into `ops` and reserve activations; the files are unmapped again when this returns.

    `max_positions` bounds the rotary tables when fewer positions than the model's context will be used.

    Raises:
        ModelLoadError: a tensor is missing, has another shape, is one that the architecture does not have, or
            has sizes that the backend does not take.
    """
    family = family_of(files.spec.architecture)
    limit = min(files.spec.max_positions, max_positions or files.spec.max_positions)
    try:
        model: Model = resolve(family.model)(files.spec, _open_weights(files, family), ops, limit)
    except ValueError as error:  # how `Ops` refuses
        raise ModelLoadError(f"{files.path}: {error}") from error
    return model


def _open_weights(files: ModelFiles, family: Family) -> WeightSource:
    if isinstance(files.weights, GGUFHeader):
        source: WeightSource = resolve(family.gguf_weights)(files.weights, files.spec)
        return source
    from chairlift.model.weights.hf_folder import HFFolderWeights

    return HFFolderWeights(files.weights)
