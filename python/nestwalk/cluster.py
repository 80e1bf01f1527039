# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs on a Dask cluster: one that is there, or one that is started for them. Needs ``pip install 'nestwalk[dask]'``.

Scheduling, retries of lost workers, security and the dashboard are Dask's. Here is what it cannot know: traces that a
node lacks, memory that a run needs, and what to do when the scheduler itself goes away.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestwalk import remote, say
from nestwalk.errors import NestwalkError
from nestwalk.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestwalk.orders import Order
    from nestwalk.pool import Outcome

NEEDED = "runs on a cluster need Dask: pip install 'nestwalk[dask]'"
STARTED = ("local", "slurm", "kubernetes", "ssh:HOST,HOST")
"""What can be started."""
RETRIES = 2
"""Of Dask, for a group whose worker raised what is not a run's failure."""
GROUP_MAX = 16
"""Runs that share a populated machine on one worker, at most: so many are made again when it is lost."""
CHUNK_BYTES = 4 << 20
"""Of a trace, in one message."""
CONNECT_SECONDS = 30
RECONNECT_SECONDS = 600
"""How long a scheduler may be away."""
MEMORY = "memory"
"""The resource of a Dask worker that says how many bytes its runs may have together."""


class LostError(Exception):
    """A group was cancelled by the cluster: its scheduler went away."""


class Cluster:
    """A site of :mod:`nestwalk.conduct`."""

    largest_group: int | None = GROUP_MAX

    def __init__(self, connect: Callable[[], Any], stop: Callable[[], None], source: str | None = None) -> None:
        """On a client from ``connect``; ``stop`` ends what was started for it.

        Args:
            connect: Makes a client of Dask; called again when the scheduler was away for long.
            stop: Ends what was started.
            source: The URL of results that workers can reach, too, for traces.
        """
        self._connect, self._stop, self._source = connect, stop, source
        self._client = connect()
        self.room = Room(None)
        self._slots = 1
        self._lock = threading.Lock()
        self._courier = ThreadPoolExecutor(1, thread_name_prefix="nestwalk-courier")
        self._sender = secrets.token_hex(4)
        self._closed = False

    @property
    def slots(self) -> int:
        """Threads of all workers that are there now, one if there is none; while the scheduler is away, as before."""
        try:
            self._slots = max(sum(int(threads) for threads in self._client.nthreads().values()), 1)
        except Exception as error:  # noqa: BLE001 (whatever Dask raises when its scheduler is away)
            say.detail(f"the scheduler does not say how many workers it has: {error}")
        return self._slots

    def submit(self, group: Sequence[Order], tell: object) -> Future[list[Outcome]]:  # noqa: ARG002
        """As :class:`nestwalk.conduct.Site`; Dask's dashboard shows how a group gets on, so nothing is told."""
        outer: Future[list[Outcome]] = Future()
        self._send(group, outer)
        return outer

    def _send(self, group: Sequence[Order], outer: Future[list[Outcome]]) -> None:
        try:
            needed = self._resources(max(order.memory_bytes for order in group))
            options = {"pure": False, "retries": RETRIES, "resources": needed}
            self._client.submit(remote.carry_out, group, self._source, **options).add_done_callback(
                lambda done: self._received(done, group, outer)
            )
        except Exception as error:  # noqa: BLE001 (whatever Dask raises when its scheduler is away)
            outer.set_exception(LostError(str(error)))

    def _resources(self, memory_bytes: int) -> dict[str, float] | None:
        """What a task needs of a worker that needs so much memory, where the workers say how much they have."""
        if not memory_bytes:
            return None
        workers = self._client.scheduler_info()["workers"].values()
        offered = [worker.get("resources", {}).get(MEMORY, 0) for worker in workers]
        return {MEMORY: min(memory_bytes, max(offered))} if any(offered) else None

    def _received(self, done: Any, group: Sequence[Order], outer: Future[list[Outcome]]) -> None:
        """Takes what a task of Dask's came to.

        A task that is done may still be lost: its result lies on its worker until it is asked for, and worker and
        scheduler may have gone meanwhile. (``Client.get_executor`` leaves its future pending for ever then.)
        """
        try:
            found = done.result(timeout=RECONNECT_SECONDS)
        except Exception as error:  # noqa: BLE001 (the run's own, or whatever Dask raises)
            is_lost = done.status != "error" or type(error).__name__ in _LOST
            outer.set_exception(LostError(_said(error)) if is_lost else error)
            return
        if isinstance(found, remote.Missing) and not self._closed:
            self._courier.submit(self._bring, found, group, outer)
        else:
            outer.set_result(found)

    def _bring(self, missing: remote.Missing, group: Sequence[Order], outer: Future[list[Outcome]]) -> None:
        """Takes files to a node that lacks them, each once, and sends the group again."""
        try:
            hosts = self._client.run(_where)
            there = [address for address, where in hosts.items() if where == (missing.host, missing.cache)][:1]
            for blob in missing.blobs if there else ():
                if not self._client.run(remote.has, blob.sha256, workers=there)[there[0]]:
                    say.detail(f"copying {blob.path} to {missing.host}")
                    self._copy(blob.path, blob.sha256, there)
        except OSError as error:
            outer.set_exception(NestwalkError(f"a trace cannot be sent to {missing.host}: {error}"))
            return
        except Exception as error:  # noqa: BLE001 (Dask's, of many kinds)
            outer.set_exception(LostError(str(error)))
            return
        self._send(group, outer)

    def _copy(self, path: str, sha256: str, workers: list[str]) -> None:
        with Path(path).open("rb") as file:
            first, chunk = True, file.read(CHUNK_BYTES)
            while True:
                following = file.read(CHUNK_BYTES)
                arguments = (sha256, self._sender, chunk)
                self._client.run(remote.receive, *arguments, first=first, last=not following, workers=workers)
                if not following:
                    return
                first, chunk = False, following

    def recover(self, error: BaseException) -> bool:
        """As :class:`nestwalk.conduct.Site`: after the scheduler was away, waits until it is back."""
        if not isinstance(error, LostError):
            return False
        with self._lock:
            deadline = time.monotonic() + RECONNECT_SECONDS
            said = False
            while not self._reachable():
                if not said:
                    say.note("the scheduler is away; waiting for it")
                    said = True
                if time.monotonic() > deadline:
                    raise NestwalkError("the scheduler is gone; what was made is kept: run the same again")
                time.sleep(0.5)
        return True

    def _reachable(self) -> bool:
        """Whether the scheduler answers, over a new connection if need be."""
        if self._client.status in {"closed", "closing"}:
            try:
                self._client = self._connect()
            except NestwalkError:
                return False
        return bool(self._client.status == "running")

    def close(self) -> None:
        """As :class:`nestwalk.conduct.Site`."""
        self._closed = True
        self._courier.shutdown(wait=False, cancel_futures=True)
        self._client.close(timeout=2)
        self._stop()


_LOST = {"KilledWorker", "FutureCancelledError", "CommClosedError", "FuturesCancelledError"}
"""Errors of Dask that say nothing about the run itself."""


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _where() -> tuple[str, str]:
    """A worker's host and cache."""
    import socket

    return socket.gethostname(), str(remote.cache())


def connect(name: str, workers: int | None = None, results: str | None = None) -> Cluster:
    """The cluster called ``name``: the address of a scheduler, or one of :data:`STARTED`.

    Raises:
        NestwalkError: When Dask is not there, or the scheduler, or what starts one.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as error:
        raise NestwalkError(f"--dask {name}: {NEEDED}") from error
    source = (
        results if results is not None and "://" in results and not results.startswith(("file:", "memory:")) else None
    )
    kind, _, rest = name.partition(":")
    if kind in _STARTERS:
        started = _start(kind, rest, workers)
        return Cluster(lambda: _client(distributed, started, name), started.close, source)
    if workers is not None:
        raise NestwalkError(f"--dask {name}: that cluster has the workers that it has; leave --workers out")
    return Cluster(lambda: _client(distributed, name, name), lambda: None, source)


def _client(distributed: Any, at: Any, name: str) -> Any:
    try:
        return distributed.Client(at, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        what = f"give tcp://HOST:PORT of a scheduler, or one of {', '.join(STARTED)}"
        raise NestwalkError(f"--dask {name}: no scheduler answers there ({why}); {what}") from error


def _start(kind: str, rest: str, workers: int | None) -> Any:
    """Starts a cluster of a kind, as Dask's own configuration (``~/.config/dask``) says.

    Raises:
        NestwalkError: When its package is not installed, or it cannot be started.
    """
    try:
        return _STARTERS[kind](rest, workers or 1)
    except ImportError as error:
        raise NestwalkError(f"--dask {kind}: {error}; {NEEDED}") from error
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise NestwalkError(f"--dask {kind}: it cannot be started: {(str(error).splitlines() or [''])[0]}") from error


def _local(_rest: str, workers: int) -> Any:
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    return import_module("distributed").LocalCluster(n_workers=workers, **options)


def _slurm(_rest: str, workers: int) -> Any:
    """Jobs of Slurm, as ``jobqueue.slurm`` of Dask's configuration says; their memory is a resource of the workers."""
    module, config, utils = (import_module(name) for name in ("dask_jobqueue", "dask.config", "dask.utils"))
    for key in ("cores", "memory"):
        if not config.get(f"jobqueue.slurm.{key}", None):
            raise ValueError(f"set jobqueue.slurm.{key} in ~/.config/dask/jobqueue.yaml (docs/sweeps.md)")
    memory = config.get("jobqueue.slurm.memory")
    extra = list(config.get("jobqueue.slurm.worker-extra-args", None) or [])
    if "--resources" not in extra:
        processes = config.get("jobqueue.slurm.processes", None) or 1
        extra += ["--resources", f"{MEMORY}={utils.parse_bytes(memory) // processes}"]
    made = module.SLURMCluster(worker_extra_args=extra)
    made.scale(jobs=workers)
    return made


def _kubernetes(_rest: str, workers: int) -> Any:
    """Pods, as ``kubernetes`` of Dask's configuration says; needs the Dask operator in the cluster."""
    return import_module("dask_kubernetes.operator").KubeCluster(n_workers=workers)


def _ssh(rest: str, workers: int) -> Any:
    """Workers on hosts, the first of which has the scheduler, too."""
    hosts = [host for host in rest.split(",") if host]
    if not hosts:
        raise ValueError("name the hosts: ssh:HOST,HOST")
    options = {"n_workers": workers, "nthreads": 1}
    return import_module("distributed").SSHCluster([hosts[0], *hosts], worker_options=options)


_STARTERS: dict[str, Callable[[str, int], Any]] = {
    "local": _local,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "ssh": _ssh,
}

__all__ = ["Cluster", "LostError", "connect"]
