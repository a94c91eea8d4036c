"""What `core` and `engine` expect of whoever computes: the real runner, a scripted fake, later a simulator."""

from __future__ import annotations

from typing import Protocol

from chairlift.core.messages import ModelRunnerOutput, SchedulerOutput


class Runner(Protocol):
    """Computes one step. Keeps a permanent row of state per request, from `new_requests` until it is
    finished or preempted (a preempted request comes back as a new one)."""

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Run the forward pass and sample. Called also with no rows when there are rows of state to free."""
        ...

    def close(self) -> None:
        """Stop worker threads and release memory."""
        ...
