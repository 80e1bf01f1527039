# SPDX-License-Identifier: MIT OR Apache-2.0
"""The cloud above the hosts: traces of VMs, fleets of hosts, and what a replay makes of them.

A loader turns a trace of any known format into one table of requests (:mod:`nestwalk.cloud.requests`), a fleet file
describes the hosts (:mod:`nestwalk.cloud.fleets`), the engine replays one on the other (:mod:`nestwalk.cloud.place`).
"""
