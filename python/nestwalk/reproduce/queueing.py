# SPDX-License-Identifier: MIT OR Apache-2.0
"""Response latency of a server: requests that go one after the other through one thread.

The simulator says how long each request takes; here they queue. Arrivals at random are a Poisson process, as those of
TailBench's clients; a request waits for those before it (Lindley's recursion) and then takes its own time. In a closed
loop, clients send a request whenever one is answered, so there are always as many under way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Responses:
    """Response latencies, cycles."""

    average: float
    p50: float
    p95: float
    p99: float


def responses(service_cycles: Sequence[int], interval_cycles: float, seed: int) -> Responses | None:
    """Latencies of requests that take ``service_cycles`` each and arrive every ``interval_cycles`` on average.

    Times between arrivals depend on ``seed`` only, so that two servers with the same interval see the same clients.
    None if there is no request.
    """
    if not service_cycles:
        return None
    clients = random.Random(seed)  # noqa: S311
    waiting, found = 0.0, []
    for service in service_cycles:
        found.append(waiting + service)
        waiting = max(0.0, waiting + service - clients.expovariate(1 / interval_cycles))
    return _responses(found)


def closed_loop(series_cycles: Sequence[int], series_requests: int, in_flight: int) -> Responses | None:
    """Latencies where ``in_flight`` requests are always under way, in a queue: a request waits for all those before it.

    ``series_cycles`` are the times of ``series_requests`` requests in a row each; latencies are those of the last
    request of each, from the first that found the queue full. None if there is none.

    Raises:
        ValueError: When ``in_flight`` is not so many times ``series_requests``.
    """
    if series_requests < 1 or in_flight < 1 or in_flight % series_requests:
        raise ValueError(f"in_flight = {in_flight}: a multiple of series_requests, which is {series_requests}")
    ahead = in_flight // series_requests
    done = [0, *accumulate(series_cycles)]
    found = [float(now - before) for before, now in zip(done, done[ahead:], strict=False)]
    return _responses(found) if found else None


def _responses(found: list[float]) -> Responses:
    found.sort()
    p50, p95, p99 = (_quantile(found, share) for share in (0.50, 0.95, 0.99))
    return Responses(sum(found) / len(found), p50, p95, p99)


def _quantile(ascending: Sequence[float], share: float) -> float:
    """The value that ``share`` of all do not exceed."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]
