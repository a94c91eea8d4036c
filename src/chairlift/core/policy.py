"""Who boards next and who leaves when KV blocks run out. A scheduler asks; a policy never changes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from chairlift.core.request import Request
from chairlift.errors import ConfigError


class Policy(Protocol):
    """The questions a scheduler asks. `now` is the time given to `schedule`, in seconds."""

    def order(self, waiting: Collection[Request], now: float) -> Iterable[Request]:
        """Waiting requests (given in arrival order, preempted ones first) in the order they may board."""
        ...

    def may_admit(self, request: Request, running: Collection[Request], now: float) -> bool:
        """False keeps the request, and everyone behind it, waiting in this step."""
        ...

    def victims(self, running: Collection[Request], need: Request, now: float) -> Iterable[Request]:
        """Running requests (given in boarding order) in the order to preempt for `need`, which has no KV block
        for its next token. Those that come after `need` itself are safe from it."""
        ...


class FcfsPolicy:
    """First come, first served: boards in order of arrival, preempts the newest."""

    def order(self, waiting: Collection[Request], now: float) -> Iterable[Request]:
        """The queue as it is."""
        return waiting

    def may_admit(self, request: Request, running: Collection[Request], now: float) -> bool:
        """Always."""
        return True

    def victims(self, running: Collection[Request], need: Request, now: float) -> Iterable[Request]:
        """Newest first."""
        return reversed(list(running))


def make_policy(name: str) -> Policy:
    """The policy called `name`; raises ConfigError when there is none."""
    policies: dict[str, type[Policy]] = {"fcfs": FcfsPolicy}
    if name not in policies:
        raise ConfigError(f"--scheduling-policy is {name!r}; choose one of {', '.join(policies)}")
    return policies[name]()
