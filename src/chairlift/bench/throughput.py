"""`bench throughput`: how fast an engine in this process gets a list of requests done, all offered at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chairlift.bench.workload import WorkItem
from chairlift.engine.client import InProcessClient
from chairlift.engine.engine import Engine
from chairlift.engine.offline import OfflineFrontend, OfflineRequest
from chairlift.engine.types import StepFrame
from chairlift.errors import ChairliftError
from chairlift.sampling_params import SamplingParams
from chairlift.tokenizer.base import Tokenizer

WARMUP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """Times in seconds; of `elapsed_s` the runner took `execute_s`, and of that forward passes took `forward_s`."""

    elapsed_s: float
    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int
    execute_s: float
    forward_s: float
    peak_rss_mb: float

    def text(self) -> str:
        """What vLLM's `bench throughput` prints, and three lines more."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return (
            f"Throughput: {self.num_requests / self.elapsed_s:.2f} requests/s, "
            f"{total / self.elapsed_s:.2f} total tokens/s, "
            f"{self.num_output_tokens / self.elapsed_s:.2f} output tokens/s\n"
            f"Total num prompt tokens:  {self.num_prompt_tokens}\n"
            f"Total num output tokens:  {self.num_output_tokens}\n"
            f"Elapsed time:  {self.elapsed_s:.2f} s in {self.num_steps} steps\n"
            f"Time in forward passes:  {self.forward_s / self.elapsed_s:.1%}"
            f" (in the model runner {self.execute_s / self.elapsed_s:.1%})\n"
            f"Peak memory:  {self.peak_rss_mb:.0f} MB"
        )

    def document(self) -> dict[str, float]:
        """vLLM's keys of --output-json, then ours."""
        total = self.num_prompt_tokens + self.num_output_tokens
        return {
            "elapsed_time": self.elapsed_s,
            "num_requests": self.num_requests,
            "total_num_tokens": total,
            "requests_per_second": self.num_requests / self.elapsed_s,
            "tokens_per_second": total / self.elapsed_s,
            "output_tokens_per_second": self.num_output_tokens / self.elapsed_s,
            **{key: value for key, value in asdict(self).items() if key not in ("elapsed_s", "num_requests")},
        }


class _WatchedClient(InProcessClient):
    """Adds up what the frames say."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.num_steps = 0
        self.execute_s = self.forward_s = 0.0

    def step(self) -> StepFrame | None:
        frame = super().step()
        if frame is not None:
            self.num_steps += 1
            self.execute_s += frame.stats.execute_s
            self.forward_s += frame.stats.forward_s
        return frame


def measure(
    engine: Engine,
    tokenizer: Tokenizer,
    items: Sequence[WorkItem],
    params: Sequence[SamplingParams],
    *,
    seed: int = 0,
) -> ThroughputResult:
    """Run all requests at once, after a few tokens to warm up, and time them.

    Raises:
        RequestError: a request could never run; nothing has been timed then.
        ChairliftError: a request did not get the tokens that it asked for.
    """
    OfflineFrontend(InProcessClient(engine), tokenizer).run(
        [
            OfflineRequest(
                "warmup", None, items[0].prompt_token_ids[:8], SamplingParams(max_tokens=WARMUP_TOKENS)
            )
        ]
    )
    client = _WatchedClient(engine)
    requests = [
        OfflineRequest(f"request-{number}", None, item.prompt_token_ids, each)
        for number, (item, each) in enumerate(zip(items, params, strict=True))
    ]
    frontend = OfflineFrontend(client, tokenizer, seed=seed)
    started = time.perf_counter()
    outputs = frontend.run(requests)
    elapsed = time.perf_counter() - started
    generated = 0
    for output, each in zip(outputs, params, strict=True):
        got = sum(len(choice.token_ids) for choice in output.outputs)
        if got != each.n * (each.max_tokens or 0):
            raise ChairliftError(f"{output.request_id} got {got} tokens, not {each.n} x {each.max_tokens}")
        generated += got
    return ThroughputResult(
        elapsed_s=elapsed,
        num_requests=len(items),
        num_prompt_tokens=sum(len(item.prompt_token_ids) for item in items),
        num_output_tokens=generated,
        num_steps=client.num_steps,
        execute_s=client.execute_s,
        forward_s=client.forward_s,
        peak_rss_mb=peak_rss_mb(),
    )


def peak_rss_mb() -> float:
    """The most memory that this process ever held, in MB of 2^20 bytes; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
