# SPDX-License-Identifier: Apache-2.0
"""How the agent's layout gets from its file into `ComputeNode.stats`: README.md, "Why a driver"."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import nova.conf
from oslo_log import log as logging

from nestwalk_nova import STATS_KEY, conf
from nestwalk_nova.encoding import LENGTH_MAX, LayoutError, decode

CONF = nova.conf.CONF
conf.register(CONF)
LOG = logging.getLogger(__name__)


class PublishesSegments:
    """Adds the host's free segments to what the compute driver that follows in the bases reports.

    Whatever is wrong with the layout, the driver's own report goes out as it is.
    """

    _trouble: str | None = "not read yet"

    def get_available_resource(self, nodename: str) -> dict[str, Any]:
        """The driver's report, which Nova's resource tracker asks for at start and every minute."""
        resources: dict[str, Any] = super().get_available_resource(nodename)  # type: ignore[misc]
        # Nova's fake driver reports nothing at all of a node that is not its own.
        if resources:
            self._publish(resources, self.segments_file(nodename))
        return resources

    def segments_file(self, nodename: str) -> Path:  # noqa: ARG002
        """The agent's file: one for all nodes, as a libvirt driver has one node."""
        return Path(CONF.nestwalk.segments_file)

    def _publish(self, resources: dict[str, Any], path: Path) -> None:
        try:
            text = read_layout(path)
        except (OSError, LayoutError) as error:
            self._log(f"{path}: {error}")
            return
        # A copy: a driver may hand out the same dictionary each time.
        resources["stats"] = {**(resources.get("stats") or {}), STATS_KEY: text}
        self._log(None)

    def _log(self, trouble: str | None) -> None:
        """Logs a condition when it begins."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            LOG.info("The host's free memory segments are published in its stats.")
        else:
            LOG.warning(
                "The host's free memory segments are not published: %s. Is the agent running?",
                trouble,
            )


def read_layout(path: Path) -> str:
    """The layout in a file that the agent wrote, checked.

    Raises:
        OSError: the file cannot be read.
        LayoutError: it holds no layout.
    """
    # Nothing waits for a pipe's writer: Nova's periodic task would hang.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LayoutError("not a regular file")
        data = file.read(LENGTH_MAX + 2)
    try:
        text = data.decode("ascii").removesuffix("\n")
    except UnicodeDecodeError:
        raise LayoutError("not ASCII text") from None
    decode(text)
    return text
