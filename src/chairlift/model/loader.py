"""From files to a model that is ready to run."""

from __future__ import annotations

from chairlift.errors import ModelLoadError
from chairlift.model.base import Model
from chairlift.model.files import ModelFiles
from chairlift.model.registry import family_of, resolve
from chairlift.model.weights.gguf import GGUFHeader
from chairlift.model.weights.quantized import QuantizedWeights
from chairlift.model.weights.source import WeightSource
from chairlift.ops.interface import Ops


def load_model(
    files: ModelFiles, ops: Ops, max_positions: int | None = None, quantization: str | None = None
) -> Model:
    """Pack the weights into `ops` and reserve activations; the files are unmapped again when this returns.

    `max_positions` bounds the rotary tables when fewer positions than the model's context will be used.
    `quantization` "q8" or "q4" rounds float weights on the way (see `model.weights.quantized`).

    Raises:
        ModelLoadError: a tensor is missing, has another shape, is one that the architecture does not have, has
            sizes that the backend does not take, or values that cannot be quantised.
    """
    family = family_of(files.spec.architecture)
    limit = min(files.spec.max_positions, max_positions or files.spec.max_positions)
    weights = open_weights(files)
    if quantization is not None:
        weights = QuantizedWeights(weights, quantization, ops.quantize)
    try:
        model: Model = resolve(family.model)(files.spec, weights, ops, limit)
    except ValueError as error:  # how `Ops` refuses
        raise ModelLoadError(f"{files.path}: {error}") from error
    return model


def open_weights(files: ModelFiles) -> WeightSource:
    """Map the files and give their tensors by Hugging Face names; raises ModelLoadError when they have changed."""
    if isinstance(files.weights, GGUFHeader):
        family = family_of(files.spec.architecture)
        source: WeightSource = resolve(family.gguf_weights)(files.weights, files.spec)
        return source
    from chairlift.model.weights.hf_folder import HFFolderWeights

    return HFFolderWeights(files.weights)
