# SPDX-License-Identifier: Apache-2.0
"""Installed as `nova.virt.nestwalk`, for `compute_driver = nestwalk.LibvirtDriver`."""

from __future__ import annotations

from nova.virt.libvirt import driver as libvirt

from nestwalk_nova.driver import PublishesSegments


class LibvirtDriver(PublishesSegments, libvirt.LibvirtDriver):
    """Nova's libvirt driver, which also publishes the host's free memory segments."""
