"""Quantise at load (`--quantization q8|q4`): a `WeightSource` whose float matrices come out in blocks of 32.

Tensor by tensor, when a model asks for it: at no time is more in memory than the packed model so far, one tensor of
the file and the blocks that a layer is packed from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from chairlift.errors import ModelLoadError
from chairlift.model.weights.mapped import TensorInfo
from chairlift.model.weights.source import WeightSource
from chairlift.ops.integer_activations import INTEGER_TYPES
from chairlift.ops.interface import HostTensor, TensorType

Quantize = Callable[[HostTensor, TensorType], HostTensor]  # `Ops.quantize`

_TARGETS = {"q8": TensorType.Q8_0, "q4": TensorType.Q4_1}
_FLOATS = frozenset({"F32", "F16", "BF16"})
# Read a row at a time, or the last thing before the logits: 4 bits cost much there, and 8 are what others keep.
_VOCABULARY = frozenset({"model.embed_tokens.weight", "lm_head.weight"})


class QuantizedWeights:
    """`WeightSource` that rounds what another one gives; norms and what is quantised already pass as they are."""

    def __init__(self, source: WeightSource, quantization: str, quantize: Quantize) -> None:
        self.path: Path = source.path
        self._source = source
        self._quantization = quantization
        self._quantize = quantize

    def names(self) -> Collection[str]:
        """All tensors of the source."""
        return self._source.names()

    def info(self, name: str) -> TensorInfo:
        """What the file says of a tensor, before it is rounded."""
        return self._source.info(name)

    def target(self, name: str) -> TensorType | None:
        """What a tensor becomes here, or None where it stays as it is; see `target_type`."""
        return target_type(name, self._source.info(name), self._quantization)

    def get(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        """The tensor, quantised where `target_type` says so.

        Raises:
            ModelLoadError: it is missing, has another shape, or values that are not finite or beyond 32768 in size.
        """
        tensor = self._source.get(name, shape)
        target = self.target(name)
        if target is None:
            return tensor
        try:
            return self._quantize(tensor, target)
        except ValueError as error:
            raise ModelLoadError(
                f"{self.path}: tensor {tensor.name!r} cannot be quantised: {error}"
            ) from error


def target_type(name: str, info: TensorInfo, quantization: str) -> TensorType | None:
    """What a tensor becomes, or None where it stays: a vector, no float, or rows of no whole blocks.

    `name` is Hugging Face's. Embedding and output head take 8 bits under "q4" too.
    """
    target = TensorType.Q8_0 if name in _VOCABULARY else _TARGETS[quantization]
    return target if _is_float_matrix(info) and not info.shape[-1] % target.block_values else None


def quantization_notices(source: WeightSource, quantization: str) -> list[str]:
    """What a user who asked for it should know: nothing was left to quantise, or some matrices could not be."""
    matrices = {name: source.info(name) for name in source.names() if _is_float_matrix(source.info(name))}
    if not matrices:
        return [
            f"--quantization {quantization} changes nothing: the matrices of {source.path} are quantised already"
        ]
    stay = [info for name, info in matrices.items() if target_type(name, info, quantization) is None]
    if not stay:
        return []
    first = min(stay, key=lambda info: info.name)
    return [
        f"--quantization {quantization}: {len(stay)} of {len(matrices)} matrices stay as they are, their rows are "
        f"no multiple of 32 values (the first is {first.name}, {first.shape[-1]} values)"
    ]


def integer_notices(source: WeightSource, quantization: str | None) -> list[str]:
    """What a user who asked for `--compute-dtype int8` should know: that no or not every matrix takes part."""
    names = set(source.names())
    if "lm_head.weight" in names:
        names.discard("model.embed_tokens.weight")  # only looked up
    kinds = [
        _final_type(name, source.info(name), quantization) for name in names if _is_matrix(source.info(name))
    ]
    integer = sum(kind in INTEGER_TYPES for kind in kinds)
    if integer == len(kinds):
        return []
    hint = "" if quantization else "; --quantization q8|q4 makes weights of 8 or 4 bits"
    if not integer:
        return [
            f"--compute-dtype int8 changes nothing: no matrix of {source.path} has 8-bit or 4-bit weights{hint}"
        ]
    return [
        f"--compute-dtype int8: {integer} of {len(kinds)} matrices are computed in int8, "
        f"the others have no 8-bit or 4-bit weights{hint}"
    ]


def _final_type(name: str, info: TensorInfo, quantization: str | None) -> TensorType:
    target = target_type(name, info, quantization) if quantization else None
    return target or TensorType(info.type_name)


def _is_matrix(info: TensorInfo) -> bool:
    return len(info.shape) == 2


def _is_float_matrix(info: TensorInfo) -> bool:
    return _is_matrix(info) and info.type_name in _FLOATS
