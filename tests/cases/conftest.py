"""Servers that cases share: one per set of flags, started when first asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from cases.service import Service

Serve: TypeAlias = Callable[..., Service]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases that serve need the default model, and a system where processes can be looked at."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "default_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)
            if not sys.platform.startswith("linux"):
                item.add_marker(pytest.mark.skip(reason="looks at processes in /proc"))


@pytest.fixture(scope="session")
def services(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, ...], Service]]:
    """All servers that were started, by their flags; stopped, and their logs judged, at the end."""
    running: dict[tuple[str, ...], Service] = {}
    with ExitStack() as stack:
        yield running
        for service in running.values():
            stack.callback(service.close)


@pytest.fixture
def serve(
    default_model: Path,
    services: dict[tuple[str, ...], Service],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Serve]:
    """`serve("--flag", "value", ...)` is a server with these flags, shared with other cases.

    After the case every server that it used must be idle, healthy, and answer as it did when it was new.
    """
    used: list[Service] = []

    def serve(*flags: str) -> Service:
        if flags not in services:
            services[flags] = Service(default_model, flags, tmp_path_factory.mktemp("service") / "server")
        used.append(services[flags])
        return services[flags]

    yield serve
    for service in used:
        service.assert_alive()
