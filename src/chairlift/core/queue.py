"""The requests that wait: newcomers at the back, preempted ones at the front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from chairlift.core.request import Request


class WaitingQueue(Collection[Request]):
    """Waiting requests in arrival order; adding and removing anywhere is O(1)."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def push_back(self, request: Request) -> None:
        """Add a newcomer."""
        self._requests[request.request_id] = request

    def push_front(self, request: Request) -> None:
        """Add a preempted request; when several leave in one step, the one that arrived last comes first."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is."""
        del self._requests[request.request_id]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and self._requests.get(request.request_id) is request
