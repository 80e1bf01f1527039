# SPDX-License-Identifier: Apache-2.0
"""The group `[nestwalk]` of nova.conf; `oslo-config-generator --namespace nestwalk` prints it."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

from nestwalk_nova.allocation import OPT1, OPT2
from nestwalk_nova.encoding import LENGTH_MAX

GROUP = "nestwalk"

OFF = "off"
PREFER = "prefer"
REQUIRE = "require"

SCHEDULER_OPTS = [
    cfg.StrOpt(
        "mode",
        default=PREFER,
        choices=[
            (OFF, "Filter and weigher do nothing. No host's stats are read."),
            (
                PREFER,
                (
                    "Hosts that need fewer segments are preferred. A host whose layout is not known is like one that "
                    "needs more than max_segments."
                ),
            ),
            (
                REQUIRE,
                (
                    "As prefer, and the filter drops each host that needs more than max_segments, cannot hold the VM "
                    "in its free segments, or whose layout is not known. This can leave no host: the boot fails."
                ),
            ),
        ],
        help="What filter and weigher do.",
    ),
    cfg.StrOpt(
        "allocator",
        default=OPT2,
        choices=[
            (OPT1, "A VM larger than any free segment gets small ones."),
            (
                OPT2,
                "A VM larger than any free segment gets the largest, then the rest in the same way.",
            ),
        ],
        help="The option of Compromis' allocation rule that the hosts use. It is simulated on their free segments.",
    ),
    cfg.IntOpt(
        "max_segments",
        default=3,
        min=1,
        max=64,
        help="n of DS-n: the segments that the hosts' processors can translate. A VM with more runs under EPT, so "
        "all larger counts are equally bad. The paper's processors have 3.",
    ),
    cfg.IntOpt(
        "slack",
        default=0,
        min=0,
        help="In mode prefer, the filter keeps the hosts that need up to this many segments more than the best one.",
    ),
    cfg.IntOpt(
        "min_candidates",
        default=3,
        min=1,
        help="In mode prefer, the filter keeps at least this many hosts, the next best ones, so that the scheduler has "
        "others to turn to when a claim or a build fails. The default is that of [scheduler] max_attempts. "
        "With 1 the filter keeps the best hosts only, as in the paper.",
    ),
    cfg.FloatOpt(
        "weight_multiplier",
        default=100.0,
        help="Multiplier of the weigher. With the default one segment outweighs all of Nova's weighers whose "
        "multiplier is 1, and the weigher of failed builds outweighs it. The metadata key "
        "nestwalk_weight_multiplier of a host aggregate has precedence. A negative value prefers many segments.",
    ),
    cfg.IntOpt(
        "stale_after",
        default=300,
        min=1,
        help="Seconds after which a published layout counts as not known. It should be a few times "
        "[DEFAULT] update_resources_interval of the compute nodes (60 s by default) and agent_interval. "
        "A layout from further than this in the future is refused as well.",
    ),
    cfg.StrOpt(
        "flavors",
        default="all",
        choices=[
            ("all", "Every VM's memory is allocated from the published segments."),
            (
                "hugepages",
                (
                    "Only VMs in huge pages (hw:mem_page_size other than small) are. For others all "
                    "hosts are alike."
                ),
            ),
        ],
        help="Which VMs take their memory from the published segments. On a stock KVM host whose agent reads a pool of "
        "huge pages that is hugepages.",
    ),
]

COMPUTE_OPTS = [
    cfg.StrOpt(
        "segments_file",
        default="/run/nestwalk/segments",
        help="File that the agent writes and the compute driver reads.",
    ),
    cfg.StrOpt(
        "source",
        default="hugetlb",
        choices=[
            (
                "hugetlb",
                (
                    "Free pages of the pool of huge pages, from sysfs. Where the agent may read /proc/kpageflags "
                    "(root), adjacent ones are one segment; else each one is a segment of its own."
                ),
            ),
            (
                "buddy",
                (
                    "The kernel's free blocks of the largest order (4 MiB on x86-64), from /proc/buddyinfo, with "
                    "the same distinction."
                ),
            ),
        ],
        help="Where the host keeps memory for VMs.",
    ),
    cfg.StrOpt(
        "page_size",
        default="1G",
        choices=["1G", "2M"],
        help="Size of the huge pages that VMs get. For source hugetlb only.",
    ),
    cfg.DictOpt(
        "reserved_pages",
        default={},
        help="Huge pages of each NUMA node that no VM will get, as node:pages, separated by commas. Give here the "
        "counts of [DEFAULT] reserved_huge_pages, less the pages that their users hold already. They are taken away "
        "from the largest segments. For source hugetlb only.",
    ),
    cfg.IntOpt(
        "agent_interval",
        default=30,
        min=1,
        help="Seconds between two looks of the agent at the host's memory.",
    ),
    cfg.IntOpt(
        "length_max",
        default=LENGTH_MAX // 4,
        min=64,
        max=LENGTH_MAX,
        help="Characters that a published layout may have. Beyond it the smallest segments are left out.",
    ),
]


def register(conf: Any) -> None:
    """Registers the options with Nova's configuration or the agent's, once."""
    conf.register_opts(SCHEDULER_OPTS, group=GROUP)
    conf.register_opts(COMPUTE_OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """For oslo.config's generator."""
    return [(GROUP, [*SCHEDULER_OPTS, *COMPUTE_OPTS])]
