# SPDX-License-Identifier: Apache-2.0
"""Places VMs on the hosts that can give them the fewest memory segments (Compromis, VEE 2021).

On a compute node, `agent` reads which memory is free for VMs, in which segments, and `driver`
publishes it in `ComputeNode.stats`. In the scheduler, `filters` and `weights` simulate the host's
allocator on what was published.
"""

#: Key in `ComputeNode.stats` under which a compute node publishes its free segments (`encoding`).
STATS_KEY = "nestwalk_segments"
