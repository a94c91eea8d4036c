"""What a model path holds, short of its weights: enough for a front end to make a tokenizer and check requests.

Imports no numpy and maps nothing for longer than it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chairlift.errors import ModelLoadError
from chairlift.model.gguf_spec import spec_from_gguf
from chairlift.model.hf_spec import architecture_of, spec_from_hf
from chairlift.model.registry import family_of
from chairlift.model.spec import ModelSpec
from chairlift.model.weights.gguf import GGUFHeader, read_gguf
from chairlift.model.weights.safetensors import SafetensorsHeader, parse_json, read_safetensors_folder


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk, its headers read and checked. Exactly one of `metadata` and `tokenizer_json` is set."""

    path: Path
    name: str  # what clients call the model unless told otherwise
    spec: ModelSpec
    weights: GGUFHeader | SafetensorsHeader
    metadata: Mapping[str, Any] | None = None  # of a GGUF: tokens, merges, template, ...
    tokenizer_json: Path | None = None  # of a Hugging Face folder; may not exist
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    chat_template: str | None = None


def open_model_files(path: str | Path) -> ModelFiles:
    """Read and check everything but the weights of a `.gguf` file or a Hugging Face folder.

    Raises:
        ModelLoadError: the path is missing or neither of the two, or the model is damaged or not supported;
            the message begins with the path.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ModelLoadError(
            f"{path}: no such file or folder; give the path of a .gguf file or of a Hugging Face folder"
        )
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> ModelFiles:
    header = read_gguf(path)
    metadata = header.metadata
    with _naming(path):
        family_of(metadata.get("general.architecture"))
        spec = spec_from_gguf(metadata)
    template = metadata.get("tokenizer.chat_template")
    return ModelFiles(
        path=path,
        name=path.stem,
        spec=spec,
        weights=header,
        metadata=metadata,
        chat_template=template if isinstance(template, str) else None,
    )


def _open_folder(path: Path) -> ModelFiles:
    if not (path / "config.json").exists():
        raise ModelLoadError(f"{path}: neither a .gguf file nor a Hugging Face folder (no config.json in it)")
    config = _read_json(path / "config.json")
    with _naming(path / "config.json"):
        family_of(architecture_of(config))
        spec = spec_from_hf(config, _read_json(path / "generation_config.json", optional=True))
    tokenizer_config = _read_json(path / "tokenizer_config.json", optional=True)
    return ModelFiles(
        path=path,
        name=path.resolve().name,
        spec=spec,
        weights=read_safetensors_folder(path),
        tokenizer_json=path / "tokenizer.json",
        tokenizer_config=tokenizer_config,
        chat_template=_folder_template(path, tokenizer_config),
    )


def _folder_template(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """A file of its own (transformers 4.43 and later) wins over the one in tokenizer_config.json."""
    file = path / "chat_template.jinja"
    if file.exists():
        return _read_text(file)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):  # several named ones
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    return parse_json(path, _read_text(path).encode())


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's path in front of a ModelLoadError raised inside."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
