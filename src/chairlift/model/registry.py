"""Which class computes which architecture. A new family is one line here and one file beside this one."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from chairlift.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Family:
    """Dotted names, imported only when weights are loaded: the front end asks just whether there is a family."""

    model: str  # class(spec, weights, ops, max_positions) that is a `Model`
    gguf_weights: str  # class(header, spec) that is a `WeightSource`


_LLAMA = Family("chairlift.model.llama:Llama", "chairlift.model.weights.llama_gguf:LlamaGGUFWeights")
_FAMILIES = {
    "llama": _LLAMA,  # GGUF: Llama, SmolLM2, TinyLlama, Mistral
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
}


def family_of(architecture: Any) -> Family:
    """The family of an architecture named by a file; raises ModelLoadError when we have none."""
    family = _FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelLoadError(
            f"architecture {architecture!r} is not supported; supported: {', '.join(_FAMILIES)}"
        )
    return family


def resolve(dotted: str) -> Any:
    """Import `module:name`."""
    module, name = dotted.split(":")
    return getattr(import_module(module), name)
