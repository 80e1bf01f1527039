# SPDX-License-Identifier: MIT OR Apache-2.0
"""Loaders of VM traces: known by content, malformed rows counted with their lines, damage refused in one line."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import REPOSITORY

from nestwalk.cloud import loaders, synthetic, transform
from nestwalk.cloud.loaders import generic
from nestwalk.cloud.requests import SCHEMA, Requests
from nestwalk.errors import NestwalkError

SHARED = REPOSITORY.parent / "shared" / "data" / "vm-traces"
GIB = 1 << 18

AZURE_V1 = """\
vmA,sub,dep,0,2591700,99.3,3.4,10.1,Delay-insensitive,1,1.75
vmB,sub,dep,300,1539300,100,6.1,33.9,Interactive,2,0.75
vmC,sub,dep,600,600,99.5,3.5,7.9,Unknown,4,112
"""
AZURE_V2 = """\
vmA,sub,dep,0,2591700,99.3,3.4,10.1,Delay-insensitive,2,4
vmB,sub,dep,300,1539300,100,6.1,33.9,Interactive,>24,>64
"""
AZURE_REDUCED = """\
vm_id,batch_id,create_s,delete_lo_s,delete_hi_s,cores,memory_gb,alive_at_split_end,split
0,dev0,1800000,1800300,1800300,8,14.0,0,dev
1,dev1,1800000,1811100,1814400,1,1.75,0,dev
2,dev2,1800300,,,2,3.5,1,dev
"""
AZURE_ARRIVALS = "vm_id,batch_id,create_s,cores,memory_gb\n0,0,300,2,3.5\n1,1,600,1,1.75\n"
HUAWEI_EAST = "vmid,cpu,memory,time,type\n0,4,16,0.0,0\n1,8,16,2.0,0\n0,4,16,83.0,1\n0,2,4,90.0,0\n"
HUAWEI_TOPOLOGY = "flavor_vcpus,flavor_ram,numa,strategy,group,domain\n8,16,1,fault_domain,0.0,1.0\n4,8,1,,,\n"
BITBRAINS_HEAD = (
    "Timestamp [ms];\tCPU cores;\tCPU capacity provisioned [MHZ];\tCPU usage [MHZ];\tCPU usage [%];\t"
    "Memory capacity provisioned [KB];\tMemory usage [KB];\tDisk read throughput [KB/s];\t"
    "Disk write throughput [KB/s];\tNetwork received throughput [KB/s];\tNetwork transmitted throughput [KB/s]\n"
)
BITBRAINS = BITBRAINS_HEAD + "".join(
    f"{1372629804 + 300 * at};\t2;\t5851.9;\t87.7;\t1.5;\t{memory};\t1034592.8;\t160.8;\t21.7;\t0.2;\t1.4\n"
    for at, memory in enumerate(("8218624.0", "8218624.0", "0.0", "4194304.0"))
)
BITBRAINS_VMS = (
    "vm,first_seen_epoch_s,last_seen_epoch_s,seen_late,seen_early_end,samples,cores_mode,cores_max,mem_kb_mode,mem_kb_max\n"
    "1,1372629804,1380491930,0,0,25220,2,2,8388608.0,8388608.0\n"
    "2,1372639804,1372649804,1,1,250,0,1,0.0,4194304.0\n"
)
BITBRAINS_MONTHS = (
    "vm,month,first_seen_epoch_s,last_seen_epoch_s,samples,max_gap_s,cores_mode,mem_kb_mode,mem_kb_max,n_distinct_mem\n"
    "1,2013-7,1372629804,1375221457,8260,110414,2,8388608.0,8388608.0,5\n"
    "1,2013-8,1375308255,1377899657,9000,110414,2,4194304.0,8388608.0,5\n"
    "2,2013-7,1372629804,1372649804,100,110414,1,2097152.0,2097152.0,1\n"
)


def versioned(event: str, vm: str, time: str, **more: object) -> str:
    flavor = {"nova_object.name": "FlavorPayload", "nova_object.data": {"vcpus": 2, "memory_mb": 2048}}
    data = {"uuid": vm, "flavor": flavor, **more}
    payload = {"nova_object.name": "InstanceActionPayload", "nova_object.data": data}
    return json.dumps({"event_type": event, "timestamp": time, "payload": payload})


def legacy(event: str, vm: str, time: str) -> str:
    payload = {"instance_id": vm, "vcpus": 4, "memory_mb": 8192, "launched_at": time}
    message = json.dumps({"event_type": f"compute.{event}", "timestamp": time, "payload": payload})
    return json.dumps({"oslo.version": "2.0", "oslo.message": message})


NOVA = "\n".join(
    [
        versioned("instance.create.end", "u1", "2024-05-01 10:00:00.000000"),
        legacy("instance.create.end", "u2", "2024-05-01 10:00:30.000000"),
        versioned("instance.update", "u1", "2024-05-01 10:00:31.000000"),
        versioned("instance.delete.end", "u1", "2024-05-01 10:01:00.000000"),
        versioned("instance.delete.end", "u0", "2024-05-01T10:02:00Z", launched_at="2024-05-01T09:00:00Z"),
        "",
    ]
)
NOVA_LOG = (
    "nova-compute.log 2017-05-16 00:00:04.500 2931 INFO nova.compute.claims [req-1] [instance: "
    "b9000564-fe1a-409b-b8cc-1e88b294cd1d] Attempting claim: memory 2048 MB, disk 20 GB, vcpus 1 CPU\n"
    "nova-compute.log 2017-05-16 00:00:24.500 2931 INFO nova.compute.manager [req-1] [instance: "
    "b9000564-fe1a-409b-b8cc-1e88b294cd1d] Terminating instance\n"
    "nova-compute.log 2017-05-16 00:00:25.500 2931 INFO nova.compute.manager [req-1] [instance: "
    "00000564-fe1a-409b-b8cc-1e88b294cd1d] Terminating instance\n"
)

SAMPLES = {
    "azure-v1.csv": AZURE_V1,
    "azure-v2.csv": AZURE_V2,
    "azure-reduced.csv": AZURE_REDUCED,
    "azure-arrivals.csv": AZURE_ARRIVALS,
    "huawei-east.csv": HUAWEI_EAST,
    "huawei-topology.csv": HUAWEI_TOPOLOGY,
    "bitbrains.csv": BITBRAINS,
    "bitbrains-vms.csv": BITBRAINS_VMS,
    "bitbrains-months.csv": BITBRAINS_MONTHS,
    "nova.json": NOVA,
    "nova.log": NOVA_LOG,
}


def load(tmp_path: Path, text: str | bytes, **options: object) -> Requests:
    path = tmp_path / "trace"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return loaders.load(path, loaders.Options(**options))  # type: ignore[arg-type]


def rows(made: Requests) -> list[tuple[object, ...]]:
    assert dict(made.frame.schema) == SCHEMA
    return made.frame.rows()


def test_azure_v1(tmp_path: Path) -> None:
    made = load(tmp_path, AZURE_V1)
    assert made.format == "Azure V1 vmtable"
    assert rows(made) == [
        ("vmA", 0, None, None, 1, int(1.75 * GIB)),
        ("vmB", 300, 1539300, 1539300, 2, int(0.75 * GIB)),
        ("vmC", 600, 600, 600, 4, 112 * GIB),
    ]


def test_azure_v2_has_buckets_whose_assumed_sizes_are_said(tmp_path: Path) -> None:
    made = load(tmp_path, AZURE_V2)
    assert made.format == "Azure V2 vmtable"
    assert [row[4:] for row in rows(made)] == [(2, 4 * GIB), (32, 128 * GIB)]
    assert any("assumed" in note for note in made.notes)


def test_azure_reduced_keeps_bounds(tmp_path: Path) -> None:
    assert [row[1:4] for row in rows(load(tmp_path, AZURE_REDUCED))] == [
        (1800000, 1800300, 1800300),
        (1800000, 1811100, 1814400),
        (1800300, None, None),
    ]
    assert [row[2:4] for row in rows(load(tmp_path, AZURE_ARRIVALS))] == [(None, None)] * 2


def test_huawei_pairs_events_and_a_name_may_come_again(tmp_path: Path) -> None:
    assert rows(load(tmp_path, HUAWEI_EAST)) == [
        ("0", 0, 83, 83, 4, 16 * GIB),
        ("1", 2, None, None, 8, 16 * GIB),
        ("0", 90, None, None, 2, 4 * GIB),
    ]


def test_huawei_s_stray_and_doubled_events_are_counted(tmp_path: Path) -> None:
    made = load(tmp_path, HUAWEI_EAST + "7,1,1,95,1\n1,8,16,96,0\n1,8,16,97,1\n8,1,1,98,2\n")
    assert made.malformed.count == 3
    assert dict(made.malformed.examples) == {
        "line 6": "a deletion of a VM that does not run",
        "line 7": "a creation of a VM that runs already",
        "line 9": "the type is neither 0 (create) nor 1 (delete)",
    }
    assert rows(made)[1] == ("1", 2, 97, 97, 8, 16 * GIB)


def test_topology_is_a_boot_storm_in_order(tmp_path: Path) -> None:
    made = load(tmp_path, HUAWEI_TOPOLOGY)
    assert [row[1:] for row in rows(made)] == [(0, None, None, 8, 16 * GIB), (0, None, None, 4, 8 * GIB)]
    assert any("boot storm" in note for note in made.notes)


def test_bitbrains_directory(tmp_path: Path) -> None:
    for month, name in (("2013-7", "1"), ("2013-8", "1"), ("2013-7", "2")):
        (tmp_path / "rnd" / month).mkdir(parents=True, exist_ok=True)
        later = BITBRAINS.replace("13726", "13727") if month == "2013-8" else BITBRAINS
        (tmp_path / "rnd" / month / f"{name}.csv").write_text(later, encoding="utf-8")
    (tmp_path / "rnd" / "2013-7" / "2.csv").write_text(BITBRAINS + "nonsense;2\n", encoding="utf-8")
    made = loaders.load(tmp_path / "rnd")
    # One VM in two months; samples of a VM that is off (0 KB) do not count; VM 2 is gone long before the end.
    assert rows(made) == [
        ("1", 0, None, None, 2, 8218624 // 4),
        ("2", 0, 900, 900, 2, 8218624 // 4),
    ]
    assert made.malformed.examples == (("2013-7/2.csv, line 6", "the timestamp is missing or not a number"),)


def test_bitbrains_tables(tmp_path: Path) -> None:
    assert rows(load(tmp_path, BITBRAINS_VMS)) == [
        ("1", 0, None, None, 2, 2097152),
        ("2", 10000, 20000, 20000, 1, 1048576),
    ]
    # The size of the month with most samples.
    assert rows(load(tmp_path, BITBRAINS_MONTHS))[0] == ("1", 0, None, None, 2, 1048576)


def test_nova_notifications(tmp_path: Path) -> None:
    made = load(tmp_path, NOVA)
    assert rows(made) == [
        ("u0", -3600, 120, 120, 2, 2048 * 256),
        ("u1", 0, 60, 60, 2, 2048 * 256),
        ("u2", 30, None, None, 4, 8192 * 256),
    ]
    array = "[\n" + ",\n".join(NOVA.strip().split("\n")) + "\n]"
    pretty = "\n".join(json.dumps(json.loads(line), indent=2) for line in NOVA.strip().split("\n"))
    assert rows(load(tmp_path, array)) == rows(load(tmp_path, pretty)) == rows(made)
    damaged = load(tmp_path, NOVA.replace('"event_type": "instance.update"', '"event_type: "instance.update"'))
    assert damaged.malformed.examples == (("line 3", "is not JSON"),)


def test_a_resized_instance_goes_and_comes_with_its_new_size(tmp_path: Path) -> None:
    def event(kind: str, second: int, uuid: str, **size: int) -> str:
        payload = {"instance_id": uuid, **size}
        return json.dumps({"event_type": kind, "timestamp": f"2026-01-01 00:00:{second:02}", "payload": payload})

    lines = [
        event("compute.instance.create.end", 0, "a", vcpus=2, memory_mb=2048),
        event("compute.instance.finish_resize.end", 10, "a", vcpus=4, memory_mb=8192),
        event("compute.instance.resize.revert.end", 20, "a", vcpus=2, memory_mb=2048),
        event("compute.instance.delete.end", 30, "a"),
        # It was created before the first notification, with what size nobody says.
        event("compute.instance.finish_resize.end", 40, "b", vcpus=1, memory_mb=1024),
        event("compute.instance.finish_resize.end", 50, "a"),
    ]
    made = load(tmp_path, "\n".join(lines) + "\n")
    assert rows(made) == [
        ("a", 0, 10, 10, 2, 2048 * 256),
        ("a", 10, 20, 20, 4, 8192 * 256),
        ("a", 20, 30, 30, 2, 2048 * 256),
        ("b", 40, None, None, 1, 1024 * 256),
    ]
    assert dict(made.malformed.examples) == {"line 6": "the flavor's vcpus or memory_mb is missing or not a number"}
    assert any("3 times a VM was resized" in note for note in made.notes)


def test_nova_log(tmp_path: Path) -> None:
    made = load(tmp_path, NOVA_LOG)
    assert rows(made) == [("b9000564-fe1a-409b-b8cc-1e88b294cd1d", 0, 20, 20, 1, 2048 * 256)]
    assert any("ran before" in note for note in made.notes)


def packing(path: Path, *, table: str = "vmType") -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE vm (vmId, tenantId, vmTypeId, priority, starttime, endtime)")
        connection.execute(f"CREATE TABLE {table} (id, vmTypeId, machineId, core, memory, hdd, ssd, nic)")
        kinds = [(1, 7, 3, 0.5, 0.5, 0, 0, 0), (2, 7, 1, 0.25, 0.125, 0, 0, 0)]
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kinds)  # noqa: S608
        values = [
            ("a", 1, 7, 0, -0.5, 1.5),
            ("b", 1, 7, 0, 2.0, None),
            ("c", 1, 9, 0, 0.0, 1.0),
            ("d", 1, 7, 0, "x", 1),
        ]
        connection.executemany("INSERT INTO vm VALUES (?, ?, ?, ?, ?, ?)", values)
    connection.close()
    return path


def test_azure_packing(tmp_path: Path) -> None:
    made = loaders.load(packing(tmp_path / "p.sqlite"), loaders.Options(machine=(64.0, 512.0 * 2**30)))
    assert rows(made) == [
        ("a", -43200, 129600, 129600, 16, 64 * GIB),
        ("b", 172800, None, None, 16, 64 * GIB),
    ]
    assert dict(made.malformed.examples) == {
        "vm row 3": "its type is not in the table vmType",
        "vm row 4": "the time of arrival is missing or not a number",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"p.sqlite"}
    with pytest.raises(NestwalkError, match="no column vmType"):
        loaders.load(packing(tmp_path / "q.sqlite", table="other"))


def test_generic_csv_and_parquet(tmp_path: Path) -> None:
    text = 'id,"start",end,ram,cpu\n"a, b",1500,2500,2048,2\nc,3000,,1024,1\nd,nonsense,1,1,1\ne,1,x,1,1\n'
    columns = generic.parse("vm=id,arrive=start:ms,leave=end:ms,memory=ram:MiB,cores=cpu")
    made = load(tmp_path, text, columns=columns)
    assert rows(made) == [("a, b", 1, 2, 2, 2, 2 * GIB), ("c", 3, None, None, 1, GIB)]
    assert [what for _, what in made.malformed.examples] == [
        "the time of arrival is missing or not a number",
        "'end' is not a time",
    ]
    frame = pl.DataFrame(
        {"id": ["a", "c"], "start": [1500, 3000], "end": [2500, None], "ram": [2048, 1024], "cpu": [2, 1]}
    )
    frame.write_parquet(tmp_path / "x.parquet")
    options = loaders.Options(columns=columns)
    assert [row[1:] for row in rows(loaders.load(tmp_path / "x.parquet", options))] == [row[1:] for row in rows(made)]
    dates = "t,ram,cpu\n2024-05-01T10:00:00,1,1\n2024-05-01 10:00:05+00:00,1,1\n"
    zoned = load(tmp_path, dates, columns=generic.parse("arrive=t:iso,memory=ram,cores=cpu"))
    assert [row[1] for row in rows(zoned)] == [1714557600, 1714557605]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("vm", "ROLE=COLUMN"),
        ("vms=id,cores=c,memory=m", "did you mean 'vm'?"),
        ("cores=c", "'memory' is missing"),
        ("cores=c,memory=m,cores=d", "twice"),
        ("cores=c,memory=m,leave_lo=x", "leave_hi"),
        ("cores=c,memory=nowhere", "unknown column"),
        ("cores=c,memory=m:GIB", "unknown unit of memory"),
        ("cores=c,memory=m,arrive=c:sec", "unknown unit"),
    ],
)
def test_column_maps_that_are_none(tmp_path: Path, columns: str, said: str) -> None:
    with pytest.raises(NestwalkError, match=said.replace("?", r"\?")):
        load(tmp_path, "c,m\n1,2\n", columns=generic.parse(columns))


def test_malformed_rows_are_counted_with_their_lines_and_the_rest_goes_on(tmp_path: Path) -> None:
    lines = AZURE_REDUCED.splitlines()
    bad = ["9,x,abc,1,1,1,1,0,dev", "9,x,1,1,1,1,-1,0,dev", "", "9,x,5,4,4,1,1,0,dev", "9,x,1,2,,1,1,0,dev", "garbage"]
    bad += [f"{lines[1]},more", "9,x,1,1,1,1e99,1,0,dev", "9,x,1,1,1,1,nan,0,dev"]
    made = load(tmp_path, "\n".join([lines[0], *bad, *lines[1:]]) + "\n")
    assert len(made.frame) == 3
    assert made.malformed.count == len(bad) - 1, "an empty line is nothing"
    assert made.malformed.examples == (
        ("line 2", "the time of arrival is missing or not a number"),
        ("line 3", "the memory is not more than 0"),
        ("line 5", "the VM leaves before it arrives"),
        ("line 6", "only one bound of the time of departure is there"),
        ("line 7", "the time of arrival is missing or not a number"),
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_gzip_is_the_same(tmp_path: Path, name: str) -> None:
    plain = load(tmp_path, SAMPLES[name])
    packed = load(tmp_path, gzip.compress(SAMPLES[name].encode()))
    assert rows(plain) == rows(packed)
    with pytest.raises(NestwalkError):
        load(tmp_path, gzip.compress(SAMPLES[name].encode())[:-9])


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_damaged_input_is_loaded_or_refused_in_one_line(tmp_path: Path, name: str, seed: int) -> None:
    data = bytearray(SAMPLES[name].encode())
    dice = random.Random(seed)  # noqa: S311
    for _ in range(dice.randrange(1, 8)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                data[at:at] = bytes(dice.choice(b'",;\n\r\0\xff{}[]-9eE.:') for _ in range(dice.randrange(1, 5)))
            case 1:
                del data[at : at + dice.randrange(1, 40)]
            case 2:
                data[at : at + 1] = bytes([dice.randrange(256)])
            case _:
                data[at:at] = data[: dice.randrange(len(data) + 1)]
    check(tmp_path, bytes(data))


def check(tmp_path: Path, data: bytes) -> None:
    """Either sound requests, or one line."""
    try:
        made = load(tmp_path, data)
    except NestwalkError as error:
        if "\n" in str(error):
            pytest.fail(f"more than a line: {error}")
        return
    frame = made.frame
    assert dict(frame.schema) == SCHEMA
    assert frame.null_count().select("vm", "arrive_s", "vcpus", "memory_pages").row(0) == (0, 0, 0, 0)
    assert (frame["memory_pages"] > 0).all()
    assert (frame["vcpus"] > 0).all()
    assert (frame["leave_lo_s"] >= frame["arrive_s"]).all()
    assert (frame["leave_hi_s"] >= frame["leave_lo_s"]).all()
    assert frame["arrive_s"].is_sorted()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=200),
    head=st.sampled_from([b"", b"PAR1", b"SQLite format 3\0", b"\x1f\x8b\x08", b"{", b"["]),
)
def test_any_bytes_are_refused_in_one_line(tmp_path: Path, data: bytes, head: bytes) -> None:
    check(tmp_path, head + data)


def test_damaged_databases(tmp_path: Path) -> None:
    whole = packing(tmp_path / "p.sqlite").read_bytes()
    dice = random.Random(1)  # noqa: S311
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 30)):
            data[dice.randrange(16, len(data))] = dice.randrange(256)
        check(tmp_path, bytes(data[: dice.randrange(1000, len(data) + 1)]))


def test_a_boot_storm_is_what_runs_at_one_time(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE_REDUCED)
    storm = transform.boot_storm(trace, 1800300)
    assert [row[:4] for row in rows(storm)] == [("1", 0, None, None), ("2", 0, None, None)]
    assert len(transform.boot_storm(trace, None).frame) == 3
    with pytest.raises(NestwalkError, match="no VM runs"):
        transform.boot_storm(trace, 5)


def test_lifetimes_are_kaplan_and_meier_s() -> None:
    # Ends at 10, 30, 40; one is seen to run for 20 and no longer. By hand: 3/4, 3/4 x 1/2, 0 are left.
    frame = pl.DataFrame(
        [("a", 0, 10, 10, 1, 1), ("b", 80, None, None, 1, 1), ("c", 0, 30, 30, 1, 1), ("d", 0, 40, 40, 1, 1)],
        schema=SCHEMA,
        orient="row",
    )
    assert synthetic.lifetimes(frame, [100])["upto"].to_list() == pytest.approx([0.25, 0.625, 1.0])


def test_private_clouds_have_the_numbers_that_they_are_given() -> None:
    clouds = synthetic.private_clouds(seed=3, clouds=20, vms=5000, sizes=50)
    assert len(clouds) == 20
    assert sum(len(cloud.frame) for cloud in clouds) == 5000
    assert len({size for cloud in clouds for size in cloud.frame["memory_pages"]}) <= 50
    again = synthetic.private_clouds(seed=3, clouds=20, vms=5000, sizes=50)
    assert all(one.frame.equals(two.frame) for one, two in zip(clouds, again, strict=True))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not here")
def test_the_shared_traces() -> None:
    expected = {
        "azure_v1/azure_v1_day21-30.csv.gz": ("Azure V1, reduced", 669_435),
        "azure_v1/azure_v1_day1-20_arrivals_only.csv.gz": ("Azure V1, arrivals only", 1_200_998),
        "bitbrains_rnd/vms.csv": ("Bitbrains, one row a VM", 500),
        "huawei_topology/VM_data_C1.csv.gz": ("Huawei topology-aware requests", 4998),
        "format_samples/OpenStack_2k.log.gz": ("Nova log", 21),
        "format_samples/azure_v1_vmtable_10rows.csv": ("Azure V1 vmtable", 10),
        "format_samples/bitbrains_rnd_2013-7_1_head200.csv": ("Bitbrains (GWA-T-12)", 1),
    }
    for name, (kind, count) in expected.items():
        made = loaders.load(SHARED / name)
        assert (made.format, len(made.frame)) == (kind, count), name
        assert not made.malformed.count, name
