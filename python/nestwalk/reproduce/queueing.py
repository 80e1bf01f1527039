# SPDX-License-Identifier: MIT OR Apache-2.0
"""Response latency of a server: requests that arrive at random, one after the other through one thread.

The simulator says how long each request takes; here they queue. Arrivals are a Poisson process, as those of TailBench's
clients; a request waits for those before it (Lindley's recursion) and then takes its own time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Responses:
    """Response latencies, cycles."""

    average: float
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
    found.sort()
    return Responses(sum(found) / len(found), _quantile(found, 0.95), _quantile(found, 0.99))


def _quantile(ascending: Sequence[float], share: float) -> float:
    """The value that ``share`` of all do not exceed."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]
