"""Composition root: the one place that chooses model, tokenizer, backend and runner and plugs them together.

Imports happen inside the functions: the front end of `serve` needs the tokenizer only, the engine process the rest.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chairlift.config import DEFAULT_INDEX_URL, ComputeConfig, EngineConfig, ModelConfig
from chairlift.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from chairlift.engine.engine import Engine
    from chairlift.engine.types import EngineInfo
    from chairlift.model.files import ModelFiles
    from chairlift.ops.interface import KVCacheSpec, MachineLimits, Ops
    from chairlift.runner.memory import KVPlan
    from chairlift.tokenizer.base import Tokenizer
    from chairlift.tokenizer.chat_template import ChatTemplate

REFERENCE_NOTICE = "the reference backend is a correctness tool, very slow and outside the same-bits promise"
NO_KERNELS_NOTICE = f"no native kernels (was there a C++ compiler at install time?): {REFERENCE_NOTICE}"

_logger = logging.getLogger("chairlift")


@dataclass(frozen=True, slots=True)
class Front:
    """What the front end needs of a model: everything but weights."""

    model_name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def resolve_model(config: EngineConfig, *, index_url: str = DEFAULT_INDEX_URL) -> EngineConfig:
    """The same config with a model path that exists; fetches the built-in default model when none is named.

    Raises:
        ModelLoadError: no such path, or the default model is neither cached nor to be had.
    """
    if config.model.model is None:
        from chairlift.model.default_model import fetch_default_model

        folder = Path(config.model.download_dir or Path.home() / ".cache" / "chairlift")
        path = str(fetch_default_model(folder, index_url))
        return replace(config, model=replace(config.model, model=path))
    if not Path(config.model.model).expanduser().exists():
        raise ModelLoadError(
            f"no model at {config.model.model!r}; give the path of a .gguf file or of a Hugging Face folder, "
            "or no model at all for the built-in one"
        )
    return config


def open_front(config: EngineConfig) -> Front:
    """Tokenizer and chat template of a resolved config's model; reads no weights.

    Raises:
        ModelLoadError: they cannot be read, or the tokenizer has ids that the model does not know.
        ConfigError: --chat-template names no file.
    """
    files = _model_files(config)
    template = _template_source(config.model, files)
    tokenizer = _open_tokenizer(config.model, files, template)
    if config.model.tokenizer is not None and tokenizer.vocab_size > files.spec.vocab_size:
        raise ModelLoadError(
            f"--tokenizer {config.model.tokenizer} has {tokenizer.vocab_size} ids, more than the "
            f"{files.spec.vocab_size} of the model's vocabulary; give the tokenizer that the model was trained with"
        )
    return Front(files.name, tokenizer, _chat_template(template, tokenizer))


def open_engine(config: EngineConfig) -> Engine:
    """`build_engine` for use in the caller's own process: what was noticed goes to the log "chairlift".

    `serve` has its engine elsewhere and shows the same notices in its banner.
    """
    engine = build_engine(config)
    for notice in engine.info.notices:
        _logger.warning("%s", notice)
    return engine


def build_engine(config: EngineConfig) -> Engine:
    """Load a resolved config's model and build the engine around it: the entry point of the engine process.

    Raises:
        ModelLoadError: the model cannot be read.
        ConfigError: flags contradict the model or the machine.
    """
    files = _model_files(config)
    with ExitStack() as undo:
        ops = create_ops(config.compute, config.scheduler.max_num_batched_tokens)
        undo.callback(ops.close)
        try:
            engine = _engine(config, files, ops)
        except MemoryError as error:
            raise ConfigError(
                "there is not enough memory; lower --kv-cache-memory (or --num-kv-blocks), "
                f"--max-num-batched-tokens or --max-num-seqs ({error})"
            ) from error
        undo.pop_all()
    return engine


def _engine(config: EngineConfig, files: ModelFiles, ops: Ops) -> Engine:
    from chairlift.core.scheduler import Scheduler
    from chairlift.engine.engine import Engine
    from chairlift.model.loader import load_model
    from chairlift.runner.memory import available_memory_bytes, plan_kv_cache
    from chairlift.runner.model_runner import ModelRunner

    cache, limits = config.cache, config.scheduler
    model = load_model(files, ops, config.model.max_model_len, config.model.quantization)
    one_block = model.kv_cache_spec(1, cache.block_size, cache.kv_cache_dtype)
    plan = plan_kv_cache(
        cache,
        bytes_per_block=one_block.bytes_per_block,
        model_context=files.spec.max_positions,
        max_model_len=config.model.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        available_bytes=available_memory_bytes(),
    )
    pool = replace(one_block, num_blocks=plan.num_kv_blocks)
    runner = ModelRunner(
        model,
        ops,
        ops.allocate_kv_cache(pool),
        block_size=cache.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=plan.max_model_len,
    )
    scheduler = Scheduler(
        limits,
        num_blocks=plan.num_kv_blocks,
        block_size=cache.block_size,
        max_model_len=plan.max_model_len,
        enable_prefix_caching=cache.enable_prefix_caching,
    )
    return Engine(scheduler, runner, _info(config, files, ops, pool, plan))


def create_ops(compute: ComputeConfig, max_num_tokens: int) -> Ops:
    """The backend that the config names; "auto" is native kernels where they are built, else the reference.

    Raises:
        ConfigError: `cpu` was asked for by name and the native module is not there, the machine refuses the
            instruction set or so many threads, or one was chosen for the reference, which has none.
    """
    if compute.backend != "reference":
        try:
            from chairlift.ops.cpu import CpuOps
        except ImportError as error:
            if compute.backend == "cpu":
                raise ConfigError(f"--backend cpu: the native module cannot be loaded ({error})") from error
        else:
            threads = compute.threads or len(os.sched_getaffinity(0))
            try:
                return CpuOps(threads, max_num_tokens, max_num_tokens, compute.isa, compute.compute_dtype)
            except (ValueError, RuntimeError) as error:
                raise ConfigError(f"--isa {compute.isa} with --threads {threads}: {error}") from error
    if compute.isa != "auto":
        raise ConfigError(f"--isa {compute.isa} chooses native kernels; the reference backend has none")
    from chairlift.ops.reference import ReferenceOps

    return ReferenceOps(max_num_tokens, max_num_tokens, compute.compute_dtype)


def describe_backend() -> dict[str, str]:
    """What `auto` would run here, for `chairlift env`."""
    ops = create_ops(ComputeConfig(), 1)
    try:
        return {"backend": ops.name, **ops.describe()}
    finally:
        ops.close()


def measure_machine() -> MachineLimits | None:
    """What this machine can do at most, measured with what `auto` would run; None without native kernels."""
    ops = create_ops(ComputeConfig(), 1)
    try:
        return ops.measure_limits()
    finally:
        ops.close()


def _model_files(config: EngineConfig) -> ModelFiles:
    from chairlift.model.files import open_model_files

    if config.model.model is None:
        raise ConfigError("the model path is not resolved; call resolve_model first")
    return open_model_files(config.model.model)


def _open_tokenizer(model: ModelConfig, files: ModelFiles, template: str | None) -> Tokenizer:
    from chairlift.tokenizer.gguf import from_gguf_metadata
    from chairlift.tokenizer.tokenizer import HFTokenizer

    if model.tokenizer is not None:
        path = Path(model.tokenizer).expanduser()
        if path.suffix != ".gguf":
            path = path / "tokenizer.json" if path.is_dir() else path
            return HFTokenizer.from_file(path, eos_token_ids=files.spec.eos_token_ids, chat_template=template)
        from chairlift.model.files import open_model_files

        return from_gguf_metadata(open_model_files(path).metadata or {})
    if files.metadata is not None:
        return from_gguf_metadata(files.metadata)
    return HFTokenizer.from_file(
        files.tokenizer_json or files.path / "tokenizer.json",
        files.tokenizer_config,
        eos_token_ids=files.spec.eos_token_ids,
        chat_template=template,
    )


def _template_source(model: ModelConfig, files: ModelFiles) -> str | None:
    """The flag's template (a file, or the text itself when it holds Jinja), else the model's."""
    given = model.chat_template
    if given is None:
        return files.chat_template
    if "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template {given}: cannot be read ({error})") from error


def _chat_template(source: str | None, tokenizer: Tokenizer) -> ChatTemplate | None:
    from chairlift.tokenizer.chat_template import ChatTemplate

    if source is None:
        return None
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_ids
    return ChatTemplate(
        source,
        bos_token="" if bos is None else tokenizer.token_text(bos),
        eos_token=tokenizer.token_text(eos[0]) if eos else "",
    )


def _info(config: EngineConfig, files: ModelFiles, ops: Ops, pool: KVCacheSpec, plan: KVPlan) -> EngineInfo:
    from chairlift.engine.types import EngineInfo
    from chairlift.model.loader import open_weights
    from chairlift.model.weights.quantized import integer_notices, quantization_notices

    quantization, weights = config.model.quantization, open_weights(files)
    slow = REFERENCE_NOTICE if config.compute.backend == "reference" else NO_KERNELS_NOTICE
    return EngineInfo(
        model_name=files.name,
        vocab_size=files.spec.vocab_size,
        max_model_len=plan.max_model_len,
        num_kv_blocks=plan.num_kv_blocks,
        block_size=pool.block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        max_num_waiting=config.scheduler.max_num_waiting,
        kv_cache_dtype=pool.dtype,
        backend=ops.name,
        details={
            **({"quantization": quantization} if quantization else {}),
            "kv pool MiB": f"{pool.num_blocks * pool.bytes_per_block / 2**20:.1f}",
            **ops.describe(),
        },
        notices=[
            *([slow] if ops.name == "reference" else []),
            *(quantization_notices(weights, quantization) if quantization else []),
            *(integer_notices(weights, quantization) if config.compute.compute_dtype == "int8" else []),
            *plan.notices,
        ],
    )
