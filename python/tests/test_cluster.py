# SPDX-License-Identifier: MIT OR Apache-2.0
"""The same bytes on every kind of cluster, whatever is killed meanwhile; each test ends what it starts."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import REPOSITORY

from nestwalk import conduct, content_store, orders, pool, remote, scenario
from nestwalk.conduct import Conductor, Means
from nestwalk.errors import NestwalkError
from nestwalk.sweeps import sweep as sweeps

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'nestwalk[dask]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own, on the way down

SPEC = """
schema = 1
title = "tiny"
seeds = [1, 2]

[[program]]
name = "gups"
title = "GUPS"

[program.workload.generator]
kind = "gups"
footprint = "32 MiB"
warm_accesses = 0
measured_accesses = {accesses}

[techniques]
only = ["vm-4k", "vm-thp"]

[[axis]]
name = "entries"
key = "machine.mmu.l2_tlb.0.entries"
values = [384, 768]
"""
SECONDS_MAX = 120
ORDER = orders.Order("ab" * 32, "kind", "model", {}, {}, {}, ())


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(SPEC.format(accesses=20_000), encoding="utf-8")
    return path


def free_port() -> int:
    """A port that nothing listens on, and that the system gives to no connection.

    The system takes a connection's own port from 32768 up. Were a server's port one of those, somebody who tries to
    connect while the server is away could get the same port, be connected to itself, and keep the server from coming
    back.
    """
    while True:
        port = random.randrange(20_000, 32_000)  # noqa: S311
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Processes:
    """A scheduler and workers, started by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        name = f"{words[0]}-{len(self.running)}"
        folder = self.folder / name
        folder.mkdir(parents=True)
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *words],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
                process_group=0,
            )
        self.running.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--dashboard-address", "127.0.0.1:0"]
        process = self.start("scheduler", *where)
        until(lambda: reachable(self.port))
        return process

    def worker(self, **variables: str) -> subprocess.Popen[bytes]:
        options = ["--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1", "--no-nanny"]
        return self.start("worker", self.address, *options, **variables)

    def stop(self) -> None:
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def reachable(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "dask")
    yield made
    made.stop()


def kept(place: Path) -> dict[str, bytes]:
    """All results of a store, to the last bit."""
    store = content_store.open_store(str(place))
    assert store is not None
    entries = {key: store.get(key) for key in sorted(store.keys())}
    return {key: entry.payload for key, entry in entries.items() if entry is not None}


def local(grid: Path, tmp_path: Path) -> dict[str, bytes]:
    sweeps.sweep(grid, jobs=2, results=str(tmp_path / "local"))
    found = kept(tmp_path / "local")
    assert len(found) == 8
    return found


def test_the_number_of_workers_is_kept_while_the_scheduler_is_away() -> None:
    from nestwalk import cluster

    class Client:
        answers: ClassVar[list[dict[str, int]]] = [{"one": 2, "two": 1}, {}]

        def nthreads(self) -> dict[str, int]:
            if not self.answers:
                raise ConnectionResetError("the scheduler is away")
            return self.answers.pop(0)

    site = cluster.Cluster(Client, lambda: None)
    assert [site.slots, site.slots, site.slots] == [3, 1, 1]


def test_the_same_bytes_on_a_local_cluster(grid: Path, tmp_path: Path) -> None:
    done = sweeps.sweep(grid, dask="local", workers=2, results=str(tmp_path / "far"))
    assert (done.tally.made, done.tally.failed) == (8, 0)
    assert kept(tmp_path / "far") == local(grid, tmp_path)


def test_the_same_bytes_from_a_scheduler_and_workers_started_by_hand(
    grid: Path, tmp_path: Path, processes: Processes
) -> None:
    """One of the two workers is killed in the middle, and then the scheduler is started anew."""
    grid.write_text(SPEC.format(accesses=400_000), encoding="utf-8")
    processes.scheduler()
    first = [processes.worker(), processes.worker()]
    far = tmp_path / "far"

    def disturb() -> None:
        until(lambda: len(list(far.rglob("*.result"))) >= 1)
        os.killpg(first[0].pid, signal.SIGKILL)
        until(lambda: len(list(far.rglob("*.result"))) >= 2)
        scheduler = processes.running[0]
        os.killpg(scheduler.pid, signal.SIGKILL)
        scheduler.wait()
        os.killpg(first[1].pid, signal.SIGKILL)
        processes.scheduler()
        processes.worker()

    trouble = threading.Thread(target=disturb, daemon=True)
    trouble.start()
    with pytest.MonkeyPatch.context() as patch:
        from nestwalk import cluster

        patch.setattr(cluster, "GROUP_MAX", 1)
        patch.setattr(cluster.Cluster, "largest_group", 1)
        done = sweeps.sweep(grid, dask=processes.address, results=str(far))
    trouble.join(SECONDS_MAX)
    assert (done.tally.made, done.tally.failed) == (8, 0), done.failures
    assert len(kept(far)) == 8, "nothing is lost, nothing twice"
    assert kept(far) == local(grid, tmp_path)


SLURM = """
ClusterName=nestwalk
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
JOBQUEUE = """
jobqueue:
  slurm:
    cores: 1
    processes: 1
    memory: 1 GiB
    walltime: "00:05:00"
    interface: lo
    log-directory: {folder}/logs
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm on this machine: its controller and one node."""
    daemons = [shutil.which(name, path="/usr/sbin:/usr/local/sbin") for name in ("slurmctld", "slurmd")]
    if None in daemons:
        pytest.skip("Slurm is not installed: apt install slurm-wlm")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons are started as root here")
    folder = tmp_path / "slurm"
    for name in ("state", "spool", "logs"):
        (folder / name).mkdir(parents=True)
    ports = free_port(), free_port()
    settings = folder / "slurm.conf"
    settings.write_text(SLURM.format(host=socket.gethostname().partition(".")[0], ports=ports, folder=folder))
    (folder / "jobqueue.yaml").write_text(JOBQUEUE.format(folder=folder), encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(settings))
    running = []
    for daemon in daemons:
        with (folder / f"{Path(str(daemon)).name}.log").open("wb") as log:
            running.append(subprocess.Popen([str(daemon), "-D", "-f", settings], stdout=log, stderr=log))
    import dask

    try:
        until(lambda: b"idle" in subprocess.run(["/usr/bin/sinfo", "-h"], capture_output=True, check=False).stdout)
        with dask.config.set(next(iter(dask.config.collect_yaml([str(folder / "jobqueue.yaml")])))):
            yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def test_the_same_bytes_in_slurm(grid: Path, tmp_path: Path, slurm: None) -> None:  # noqa: ARG001
    done = sweeps.sweep(grid, dask="slurm", workers=2, results=str(tmp_path / "far"))
    assert (done.tally.made, done.tally.failed) == (8, 0)
    assert kept(tmp_path / "far") == local(grid, tmp_path)


SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/mine.pub
PidFile none
StrictModes no
UsePAM no
"""
SSH = """
Host near far
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/mine
  UserKnownHostsFile {folder}/known
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hosts ``near`` and ``far``, which the user's ssh configuration knows: a daemon on this machine."""
    pytest.importorskip("asyncssh", reason="asyncssh is not installed: pip install asyncssh")
    daemon = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    keygen = shutil.which("ssh-keygen")
    if daemon is None or keygen is None:
        pytest.skip("the daemon of ssh is not installed: apt install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    folder = tmp_path / "ssh"
    (folder / ".ssh").mkdir(parents=True)
    for key in ("host", "mine"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    port = free_port()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}", encoding="utf-8")
    (folder / "sshd_config").write_text(SSHD.format(port=port, folder=folder), encoding="utf-8")
    (folder / ".ssh" / "config").write_text(SSH.format(port=port, folder=folder), encoding="utf-8")
    monkeypatch.setenv("HOME", str(folder))
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([daemon, "-D", "-e", "-f", folder / "sshd_config"], stdout=log, stderr=log)
    try:
        until(lambda: reachable(port))
        yield
    finally:
        process.terminate()
        process.wait()


def test_the_same_bytes_over_ssh(grid: Path, tmp_path: Path, hosts: None) -> None:  # noqa: ARG001
    done = sweeps.sweep(grid, dask="ssh:near,far", workers=1, results=str(tmp_path / "far"))
    assert (done.tally.made, done.tally.failed) == (8, 0)
    assert kept(tmp_path / "far") == local(grid, tmp_path)


def test_a_trace_goes_once_to_a_node_that_lacks_it(
    tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers cannot see the file: its path begins at this process' folder, which is not theirs."""
    from nestwalk import data

    shutil.copy(data.TRACES / "redis.nwt", tmp_path / "mine.nwt")
    monkeypatch.chdir(tmp_path)
    table = {
        "schema": 1,
        "machine": "broadwell-asap",
        "workload": {"trace": "mine.nwt"},
        "sampling": {"measured_accesses_max": 20_000},
    }
    wanted = []
    stacks: list[list[dict[str, Any]]] = [[{}], [{}, {}]]
    for number, kernels in enumerate(stacks):
        text = scenario.write({**table, "name": f"run-{number}", "kernels": kernels})
        one = orders.of(pool.Job(f"run-{number}", text, Path(f"run-{number}.toml")))
        ((path, blob),) = one.order.blobs
        blind = replace(blob, path="mine.nwt", bundled="")
        wanted.append(replace(one, order=replace(one.order, blobs=((path, blind),))))
    cache = tmp_path / "node"
    processes.scheduler()
    for _ in range(2):
        processes.worker(NESTWALK_TRACES=str(cache))
    taken: dict[int, dict[str, Any]] = {}
    conductor = Conductor(wanted, None)
    site = Means(dask=processes.address).site()
    try:
        conductor.make(
            wanted, site, taken.__setitem__, pool.Silent(), on_failure=lambda failure: pytest.fail(failure.message)
        )
    finally:
        site.close()
    assert [path.name for path in cache.iterdir()] == [wanted[0].order.blobs[0][1].sha256]
    here = conduct.results([one.job for one in wanted], Means(jobs=1, results="none"), pool.Silent())
    assert [taken[0], taken[1]] == here


def test_a_damaged_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(remote.VARIABLE, str(tmp_path))
    with pytest.raises(NestwalkError, match="came over damaged"):
        remote.receive("ab" * 32, "me", b"other bytes", first=True, last=True)
    assert list(tmp_path.iterdir()) == []


def test_runs_wait_for_a_worker_with_their_memory() -> None:
    """Of workers that say how much memory they have, none gets runs that need more together."""
    from nestwalk import cluster

    asked: list[Any] = []

    class Task:
        def add_done_callback(self, _: object) -> None:
            pass

    class Client:
        def scheduler_info(self) -> dict[str, Any]:
            return {"workers": {"a": {"resources": {"memory": 100.0}}, "b": {}}}

        def submit(self, *_: object, **options: Any) -> Task:
            asked.append(options["resources"])
            return Task()

    made = cluster.Cluster(Client, lambda: None)
    for needed in (0, 40, 4000):
        made.submit([replace(ORDER, memory_bytes=needed)], None)
    assert asked == [None, {"memory": 40}, {"memory": 100.0}]


class BrokenError(Exception):
    """What a run raises."""


@pytest.mark.parametrize(
    ("status", "raised", "is_lost"),
    [
        ("finished", ConnectionResetError("by peer"), True),
        ("finished", TimeoutError(), True),
        ("cancelled", CancelledError(), True),
        ("error", BrokenError("a bug"), False),
    ],
)
def test_a_result_that_cannot_be_fetched_is_a_lost_group(status: str, raised: Exception, is_lost: bool) -> None:
    """A worker has made it, and went away with the scheduler before it was asked for it."""
    from nestwalk import cluster

    class Task:
        def __init__(self) -> None:
            self.status = status

        def result(self, timeout: float) -> list[pool.Outcome]:
            assert timeout == cluster.RECONNECT_SECONDS
            raise raised

        def add_done_callback(self, call: Callable[[Task], None]) -> None:
            call(self)

    class Client:
        def submit(self, *_: object, **__: object) -> Task:
            return Task()

    future = cluster.Cluster(Client, lambda: None).submit([ORDER], None)
    error = future.exception(timeout=0)
    assert isinstance(error, cluster.LostError) == is_lost
    assert is_lost or error is raised


def test_the_first_run_of_a_kind_waits_for_memory_by_its_footprint(tmp_path: Path) -> None:
    """A guest of 400 GB, of which nothing is known yet, needs more than one of 64 MB beside it."""

    def needs(workload: dict[str, Any], **keys: Any) -> float:
        text = scenario.write({"schema": 1, "name": "x", "machine": "broadwell-asap", "workload": workload, **keys})
        return orders.of(pool.Job("x", text, tmp_path / "x.toml")).order.memory_bytes / (1 << 30)

    small, large = ({"generator": {"kind": "gups", "footprint": size}} for size in ("64 MiB", "400 GiB"))
    kernels: list[dict[str, Any]] = [{}, {}]
    assert 0.125 < needs(small, kernels=kernels) < 0.13
    assert 25 < needs(large, kernels=kernels) < 25.2
    assert needs({"trace": "redis"}, kernels=kernels) < 0.2


@pytest.mark.parametrize(
    ("address", "said"),
    [("tcp://127.0.0.1:1", "no scheduler answers there"), ("ssh:", "name the hosts"), ("slurm", "cannot be started")],
)
def test_what_is_no_cluster_is_said(grid: Path, address: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from nestwalk import cluster

    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(NestwalkError, match=said) as error:
        sweeps.sweep(grid, dask=address, results="none")
    assert "\n" not in str(error.value)


def test_the_manifests_are_what_kubernetes_takes() -> None:
    client = pytest.importorskip("kubernetes.client", reason="the models of Kubernetes are not installed")
    yaml = pytest.importorskip("yaml")
    api = client.ApiClient(client.Configuration())
    models = {("v1", "Service"): "V1Service", ("apps/v1", "Deployment"): "V1Deployment"}
    found = []
    for file in sorted((REPOSITORY / "packaging" / "kubernetes").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            model = models[document["apiVersion"], document["kind"]]
            read = api.deserialize(json.dumps(document), model, "application/json")
            written = api.sanitize_for_serialization(read)
            assert written == document, f"{file.name}: a key that {model} does not know, or one that it misses"
            found.append(document["metadata"]["name"])
    assert found == ["nestwalk-scheduler", "nestwalk-scheduler", "nestwalk-worker"]
