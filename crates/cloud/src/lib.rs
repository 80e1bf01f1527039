// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cloud above the hosts: how a hypervisor chooses the memory of a VM, and a scheduler its host.
