"""Opening a model without its weights: what it says of itself, how it fails, and how little it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.errors import ModelLoadError
from chairlift.model.files import open_model_files
from model.tiny_models import TinyModel


def test_gguf_file(tmp_path: Path) -> None:
    """A .gguf brings its metadata for the tokenizer, its template, and a name."""
    image = TinyModel().gguf()
    image.metadata |= {"tokenizer.ggml.tokens": ["x"] * 128, "tokenizer.chat_template": "{{ messages }}"}
    files = open_model_files(image.write(tmp_path / "Tiny-Llama.Q4_1.gguf"))
    assert files.name == "Tiny-Llama.Q4_1"
    assert files.metadata is not None
    assert files.metadata["tokenizer.ggml.tokens"] == ["x"] * 128
    assert files.chat_template == "{{ messages }}"
    assert files.tokenizer_json is None
    assert files.spec.num_layers == 2


def test_folder(tmp_path: Path) -> None:
    """A folder brings the path of its tokenizer.json, its tokenizer settings and its end-of-text ids."""
    folder = TinyModel().write_folder(tmp_path / "tiny")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "old", "add_bos_token": True}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 2]}))
    files = open_model_files(str(folder))
    assert (files.name, files.metadata, files.chat_template) == ("tiny", None, "old")
    assert files.tokenizer_json == folder / "tokenizer.json"
    assert files.tokenizer_config["add_bos_token"] is True
    assert files.spec.eos_token_ids == (3, 2)


def test_template_spellings(tmp_path: Path) -> None:
    """chat_template.jinja wins; of several named templates the default one is taken; none is None."""
    folder = TinyModel().write_folder(tmp_path)
    assert open_model_files(folder).chat_template is None
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_model_files(folder).chat_template == "d"
    (folder / "chat_template.jinja").write_text("file")
    assert open_model_files(folder).chat_template == "file"


def test_path_that_is_not_there(tmp_path: Path) -> None:
    """A wrong path says what would be right."""
    with pytest.raises(ModelLoadError, match="no such file or folder; give the path of"):
        open_model_files(tmp_path / "none")


def test_folder_without_config(tmp_path: Path) -> None:
    """A folder that is no model says what it is not, and names the file it lacks."""
    words = r"neither a \.gguf file nor a Hugging Face folder \(no config\.json in it\)"
    with pytest.raises(ModelLoadError, match=words):
        open_model_files(tmp_path)


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "GemmaForCausalLM", ""])
def test_architecture_that_we_lack(tmp_path: Path, architecture: str) -> None:
    """An architecture without a family is refused by name, before its sizes are looked at."""
    folder = TinyModel(extra={"architectures": [architecture]}).write_folder(tmp_path / "hf")
    with pytest.raises(
        ModelLoadError, match=rf"config\.json: architecture '{architecture}' is not supported; supp"
    ):
        open_model_files(folder)
    image = TinyModel().gguf()
    image.metadata = {"general.architecture": "gemma3"}
    with pytest.raises(
        ModelLoadError, match=r"m\.gguf: architecture 'gemma3' is not supported; supported: llama"
    ):
        open_model_files(image.write(tmp_path / "m.gguf"))


def test_errors_name_the_file(tmp_path: Path) -> None:
    """A wrong setting is reported with the file it stands in."""
    folder = TinyModel(extra={"mlp_bias": True}).write_folder(tmp_path / "hf")
    with pytest.raises(ModelLoadError, match=r"hf/config\.json: mlp_bias is True"):
        open_model_files(folder)


def test_front_end_needs_no_numpy(tmp_path: Path) -> None:
    """Opening either kind of model imports no numpy: the front end starts quickly."""
    model = TinyModel()
    paths = [str(model.gguf().write(tmp_path / "m.gguf")), str(model.write_folder(tmp_path / "hf"))]
    code = (
        "import sys; from chairlift.model.files import open_model_files\n"
        "[open_model_files(path) for path in sys.argv[1:]]\n"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, *paths], timeout=60).returncode == 0
