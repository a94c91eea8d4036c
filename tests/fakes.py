"""Scripted stand-ins for what computes: a byte tokenizer, a runner with no model, an engine client with no process.

The scheduler and the engine around them are the real ones. A quick start:

    tokenizer = ByteTokenizer()
    client = FakeAsyncClient(lambda: build(ScriptedRunner({"Hi": "Hello!"}), max_num_seqs=4).engine)
    frontend = AsyncFrontend(client, tokenizer)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chairlift.config import EngineConfig, ModelConfig, SchedulerConfig
from chairlift.core.messages import ModelRunnerOutput, NewRequest, SchedulerOutput, TokenLogprobs
from chairlift.core.scheduler import Scheduler
from chairlift.engine.engine import Engine
from chairlift.engine.types import EngineInfo, EngineRequest, StepFrame
from chairlift.errors import EngineDeadError, ModelLoadError

T = TypeVar("T")

EOS_TEXT = "<|im_end|>"
EOS = 256
SPECIALS = {EOS: EOS_TEXT, 257: "<|im_start|>", 258: "<|pad|>"}
FIRST_WORD = 259


class ByteTokenizer:
    """Id i is byte i; 256 to 258 are control tokens; `words` get ids from 259 (decoding only: `encode` is bytes)."""

    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = (EOS,)
    strips_leading_space = False

    def __init__(self, words: Sequence[str | bytes] = ()) -> None:
        self._words = [word.encode() if isinstance(word, str) else word for word in words]

    @property
    def vocab_size(self) -> int:
        return FIRST_WORD + max(len(self._words), 41)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        while text:
            special = next((i for i, name in SPECIALS.items() if text.startswith(name)), None)
            if special is not None:
                ids.append(special)
                text = text[len(SPECIALS[special]) :]
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (i for i in ids if not (skip_special_tokens and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < EOS:
            return bytes([token_id])
        if token_id in SPECIALS:
            return SPECIALS[token_id].encode()
        index = token_id - FIRST_WORD
        return self._words[index] if index < len(self._words) else b"?"

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIALS

    def special_token_id(self, text: str) -> int | None:
        return next((i for i, name in SPECIALS.items() if name == text), None)


Script = str | Sequence[int]


def ids_of(script: Script) -> list[int]:
    """Token ids of a script: a text is its UTF-8 bytes, with control tokens where they are spelled."""
    return ByteTokenizer().encode(script) if isinstance(script, str) else list(script)


@dataclass
class _Row:
    token_ids: list[int]
    request: NewRequest


class ScriptedRunner:
    """A `Runner` whose tokens are a pure function of (prompt, seed, branch, tokens before), as the real one's are.

    Args:
        scripts: output by prompt (texts or ids); ends with EOS. Other prompts get an endless pseudo-random text of
            lower-case letters that depends on the whole of what came before, the seed and the branch.
        raise_at: the call of `execute` (from 1) that raises.
        block_at: the call of `execute` that never returns.
        poison: a prompt whose rows make every `execute` raise.
        on_step: called with the number of the call before anything else.
    """

    def __init__(
        self,
        scripts: Mapping[str | tuple[int, ...], Script] | None = None,
        *,
        raise_at: int | None = None,
        block_at: int | None = None,
        poison: Script | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self._scripts = {tuple(ids_of(p)): [*ids_of(s), EOS] for p, s in (scripts or {}).items()}
        self._raise_at = raise_at
        self._block_at = block_at
        self._poison = None if poison is None else ids_of(poison)
        self._on_step = on_step
        self.rows: dict[str, _Row] = {}
        self.num_calls = 0
        self.num_tokens = 0  # sampled
        self.seeds: list[int] = []  # of every request that boarded
        self.closed = False

    @property
    def blocks_next(self) -> bool:
        """True when the next call of `execute` would never return."""
        return self._block_at == self.num_calls + 1

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self.num_calls += 1
        if self._on_step is not None:
            self._on_step(self.num_calls)
        if self._raise_at == self.num_calls:
            raise RuntimeError("scripted failure")
        if self._block_at == self.num_calls:
            threading.Event().wait()
        for request_id in [*scheduled.finished_request_ids, *(p.request_id for p in scheduled.preempted)]:
            self.rows.pop(request_id, None)
        for request in scheduled.new_requests:
            self.rows[request.request_id] = _Row(list(request.token_ids), request)
            self.seeds.append(request.seed)
        return self._compute(scheduled)

    def close(self) -> None:
        self.closed = True

    def _compute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output = ModelRunnerOutput()
        for share in scheduled.scheduled:
            row, request_id = self.rows[share.request_id], share.request_id
            params, end = row.request.sampling_params, share.num_computed_tokens + share.num_scheduled_tokens
            if row.token_ids[: row.request.num_prompt_tokens] == self._poison:
                raise RuntimeError("poison")
            if params.prompt_logprobs is not None:
                last = min(end, row.request.num_prompt_tokens - 1)
                output.prompt_logprobs[request_id] = [
                    entry_of(row.token_ids[i + 1], params.prompt_logprobs)
                    for i in range(share.num_computed_tokens, last)
                ]
            if end < len(row.token_ids) or params.max_tokens == 0:
                continue
            token_id = self.token_after(row.token_ids, row.request)
            row.token_ids.append(token_id)
            self.num_tokens += 1
            output.sampled_token_ids[request_id] = [token_id]
            if params.logprobs is not None:
                output.logprobs[request_id] = [entry_of(token_id, params.logprobs)]
        return output

    def token_after(self, token_ids: Sequence[int], request: NewRequest) -> int:
        """The token that follows `token_ids` in this request."""
        prompt = tuple(token_ids[: request.num_prompt_tokens])
        script = self._scripts.get(prompt)
        if script is not None:
            return script[min(len(token_ids) - len(prompt), len(script) - 1)]
        key = repr((tuple(token_ids), request.seed, request.branch)).encode()
        return ord("a") + hashlib.sha256(key).digest()[0] % 26


def entry_of(token_id: int, num_top: int) -> TokenLogprobs:
    """The logprobs that the scripted runner gives a token."""
    top = tuple(range(token_id, token_id + num_top))
    return TokenLogprobs(token_id, -token_id / 256, 1, top, tuple(-i / 256 for i in top))


@dataclass
class Assembly:
    """An engine and its parts, for tests that look inside."""

    engine: Engine
    scheduler: Scheduler
    runner: ScriptedRunner


def build(
    runner: ScriptedRunner | None = None,
    *,
    num_kv_blocks: int = 256,
    block_size: int = 16,
    max_model_len: int = 1024,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 256,
    max_num_waiting: int = 1024,
    enable_prefix_caching: bool = True,
    vocab_size: int = FIRST_WORD + 41,
) -> Assembly:
    """A real engine and scheduler on a scripted runner."""
    runner = runner or ScriptedRunner()
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_num_waiting),
        num_blocks=num_kv_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
    )
    info = EngineInfo(
        model_name="scripted",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        num_kv_blocks=num_kv_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_waiting=max_num_waiting,
        kv_cache_dtype="f32",
        backend="reference",
    )
    return Assembly(Engine(scheduler, runner, info), scheduler, runner)


class FakeAsyncClient:
    """An `AsyncEngineClient` that steps its engine in the event loop, one step per `next_frame`.

    Args:
        make_engine: called at each start; give it a list of runners to have a fresh one after each "crash".
        paused: step only when `allow` has let it.
    """

    def __init__(self, make_engine: Callable[[], Engine], *, paused: bool = False) -> None:
        self._make_engine = make_engine
        self._paused = paused
        self._allowed = 0
        self._changed = asyncio.Event()
        self._death: str | None = None
        self.engine: Engine | None = None
        self.num_starts = 0
        self.closed = False

    async def start(self) -> EngineInfo:
        self._death = None
        self.engine = self._make_engine()
        self.num_starts += 1
        return self.engine.info

    async def restart(self) -> EngineInfo:
        return await self.start()

    def add_request(self, request: EngineRequest) -> None:
        if self.engine is not None and self._death is None:
            self.engine.add_request(request)
            self._changed.set()

    def abort(self, request_ids: Sequence[str]) -> None:
        if self.engine is not None and self._death is None:
            self.engine.abort(request_ids)
            self._changed.set()

    async def next_frame(self) -> StepFrame:
        await asyncio.sleep(0)
        while True:
            if self._death is not None:
                raise EngineDeadError(self._death)
            if self.engine is not None and self._may_step(self.engine):
                self._allowed -= self._paused
                return self._step(self.engine)
            self._changed.clear()
            await self._changed.wait()

    def allow(self, steps: int = 1) -> None:
        """Let a paused client take so many more steps."""
        self._allowed += steps
        self._changed.set()

    def resume(self) -> None:
        """Let a paused client run freely from now on."""
        self._paused = False
        self._changed.set()

    def kill(self, reason: str) -> None:
        """Also what a test calls to have the engine die between two steps."""
        self._death = reason
        self._changed.set()

    @property
    def pid(self) -> int | None:
        alive = self.engine is not None and self._death is None and not self.closed
        return 4242 if alive else None

    def close(self) -> None:
        self.closed = True
        self.kill("closed")

    def _may_step(self, engine: Engine) -> bool:
        blocked = getattr(engine.runner, "blocks_next", False)
        return engine.has_unfinished() and not blocked and (not self._paused or self._allowed > 0)

    def _step(self, engine: Engine) -> StepFrame:
        try:
            frame = engine.step()
        except Exception as error:
            self._death = f"{type(error).__name__}: {error}"
            raise EngineDeadError(self._death) from error
        assert frame is not None
        return frame


def run_async(main: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
    """Run a test's coroutine in a loop of its own; a test that hangs fails."""

    async def bounded() -> T:
        return await asyncio.wait_for(main, timeout)

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Let the event loop run until a condition holds; TimeoutError when it never does."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), timeout)


# -- engines for real child processes --------------------------------------------------------------------------
CHILD_ENTRY = "fakes:build_child_engine"


def child_config(**options: Any) -> EngineConfig:
    """A config for `CHILD_ENTRY`. The options travel as JSON in place of the model's path:

    scripts, poison, block_at, raise_at: of `ScriptedRunner`; engine: keywords of `build`;
    kill_at: the first process to reach that step kills itself; once: the path that makes it the first (block_at
    needs it too); step_delay: seconds per step;
    sizes: the path of a log of what each start asked for, [num_kv_blocks, max_model_len]; what it left open is
    resolved from "free memory", which is half as much at each start;
    fail: a message; building raises ModelLoadError; crash: building ends the process.
    """
    return EngineConfig(model=ModelConfig(model=json.dumps(options)))


def build_child_engine(config: EngineConfig) -> Engine:
    """The entry point of child processes in tests."""
    options = json.loads(config.model.model or "{}")
    if "fail" in options:
        raise ModelLoadError(options["fail"])
    if options.get("crash"):
        os._exit(9)
    delay, pause = options.get("step_delay", 0.0), threading.Event()

    def on_step(number: int) -> None:
        pause.wait(delay)
        if number == options.get("kill_at") and _first_to_come(options["once"]):
            os.kill(os.getpid(), signal.SIGKILL)

    runner = ScriptedRunner(
        options.get("scripts"),
        raise_at=options.get("raise_at"),
        block_at=options["block_at"] if "block_at" in options and _first_to_come(options["once"]) else None,
        poison=options.get("poison"),
        on_step=on_step,
    )
    engine = options.get("engine", {})
    if "sizes" in options:
        engine = {**engine, **_resolved_sizes(config, Path(options["sizes"]))}
    return build(runner, **engine).engine


def _resolved_sizes(config: EngineConfig, log: Path) -> dict[str, int]:
    """Sizes of one start: those that were asked for, or what "free memory" gives."""
    starts = log.read_text().count("\n") if log.exists() else 0
    blocks, length = config.cache.num_kv_blocks, config.model.max_model_len
    with log.open("a") as file:
        file.write(json.dumps([blocks, length]) + "\n")
    blocks = blocks or 64 >> starts
    return {"num_kv_blocks": blocks, "max_model_len": length or blocks * 16}


def _first_to_come(path: str) -> bool:
    """True for the first caller with this path, in whatever process."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
