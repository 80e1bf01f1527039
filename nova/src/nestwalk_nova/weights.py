# SPDX-License-Identifier: Apache-2.0
"""The scheduler's weigher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nova.conf
from nova.scheduler import utils, weights

from nestwalk_nova import conf, needs

if TYPE_CHECKING:
    from collections.abc import Sequence

CONF = nova.conf.CONF
conf.register(CONF)


class FewestSegmentsWeigher(weights.BaseHostWeigher):
    """Weighs a host the higher, the fewer segments it needs for the VM.

    As with Nova's own weighers the weights of a request's hosts are scaled to 0 (most segments) to
    1 (fewest), and all to 0 where they are equal.
    """

    def weight_multiplier(self, host_state: Any) -> float:
        """From the host's aggregates, else from the configuration."""
        settings = CONF.nestwalk
        return float(
            utils.get_weight_multiplier(
                host_state, "nestwalk_weight_multiplier", settings.weight_multiplier
            )
        )

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """The weights of all of a request's hosts, not scaled yet."""
        return self._weigh([weighed.obj for weighed in weighed_obj_list], weight_properties)

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        return self._weigh([host_state], weight_properties)[0]

    def _weigh(self, hosts: list[Any], spec: Any) -> list[float]:
        settings = CONF.nestwalk
        found = None if settings.mode == conf.OFF else needs.ranks(hosts, spec, settings)
        if found is None:
            return [0.0] * len(hosts)
        return [-float(rank) for rank in needs.known_ranks(found, settings.max_segments + 1)]
