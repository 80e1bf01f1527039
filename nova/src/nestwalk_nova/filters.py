# SPDX-License-Identifier: Apache-2.0
"""The scheduler's filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nova.conf
from nova.scheduler import filters, utils

from nestwalk_nova import conf, needs

if TYPE_CHECKING:
    from collections.abc import Iterable

CONF = nova.conf.CONF
conf.register(CONF)


class FewestSegmentsFilter(filters.BaseHostFilter):
    """Keeps the hosts that need the fewest segments for the VM: Compromis, ImprovPlacement.

    Name it last in `[filter_scheduler] enabled_filters`: it decides among the hosts that Nova's own
    filters leave, so it does not touch capacity.
    """

    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Iterable[Any], spec_obj: Any) -> list[Any]:
        """The hosts that are kept, in their order."""
        hosts = list(filter_obj_list)
        settings = CONF.nestwalk
        if settings.mode == conf.OFF or not hosts or utils.request_is_rebuild(spec_obj):
            return hosts
        found = needs.ranks(hosts, spec_obj, settings)
        if found is None:
            return hosts
        if settings.mode == conf.REQUIRE:
            most = settings.max_segments
        elif _instances(spec_obj) > 1:
            # The scheduler filters the hosts that are left after the first instance for the second,
            # and so on. Whoever is dropped now has no part in the whole request, and the few best
            # hosts may not have room for all of it.
            return hosts
        else:
            most = _most_segments(needs.known_ranks(found, settings.max_segments + 1), settings)
            if most > settings.max_segments:
                return hosts
        return [
            host
            for host, rank in zip(hosts, found, strict=True)
            if rank is not None and rank <= most
        ]


def _instances(spec: Any) -> int:
    return int(spec.num_instances) if "num_instances" in spec else 1


def _most_segments(ranks: list[int], settings: Any) -> int:
    """The rank up to which hosts are kept."""
    ascending = sorted(ranks)
    candidates: int = min(settings.min_candidates, len(ascending))
    slack: int = settings.slack
    return max(ascending[0] + slack, ascending[candidates - 1])
