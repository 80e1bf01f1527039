# SPDX-License-Identifier: MIT OR Apache-2.0
"""The programs that come with the capture, at a small size."""

import random
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import raw_stream as raw

NESTWALK = Path(sys.executable).with_name("nestwalk")
PROGRAMS = Path(__file__).resolve().parent.parent / "programs"

for tool, package in (("qemu-x86_64", "qemu-user"), ("cc", "gcc"), ("make", "make")):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed (apt-get install {package})", allow_module_level=True)


def build(name, directory):
    """The program, built apart from the sources; None where that fails."""
    libraries = ["-lhiredis", "-lm"] if name == "zipf_client" else []
    command = ["cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", PROGRAMS / f"{name}.c"]
    done = subprocess.run([*command, "-o", directory / name, *libraries], check=False, capture_output=True)
    return directory / name if done.returncode == 0 else None


@pytest.fixture(scope="module")
def bfs(tmp_path_factory):
    program = build("bfs", tmp_path_factory.mktemp("bfs"))
    assert program
    return program


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (apt-get install redis-server)")
    program = build("zipf_client", tmp_path_factory.mktemp("client"))
    if program is None:
        pytest.skip("zipf_client does not build (apt-get install libhiredis-dev)")
    return program


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(*command):
    return subprocess.run([*map(str, command)], check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("scale", [1, 6, 14])
def test_bfs_searches_agree(bfs, scale):
    """Each search checks itself; those of the big component all reach the same vertices."""
    done = run(bfs, "-s", scale, "-t", 4)
    assert done.returncode == 0, done.stderr
    reached = [int(line.split()[-1]) for line in done.stderr.splitlines()[1:]]
    assert len(reached) == 4
    assert 2 <= max(reached) <= 1 << scale


def test_bfs_repeats_exactly(bfs):
    first, second, other = (run(bfs, "-s", 8, "-r", seed).stderr for seed in (1, 1, 2))
    assert first == second != other


@pytest.mark.parametrize("arguments", [["-s", "x"], ["-s", "0"], ["-s", "32"], ["-t", "-1"], ["-z"]])
def test_bfs_refuses(bfs, arguments):
    done = run(bfs, *arguments)
    assert done.returncode == 2
    assert done.stderr


def test_redis_under_its_client(client, tmp_path):
    """Real server, real client; it stops by itself and the stream is well-formed."""
    out, port = tmp_path / "redis.raw", free_port()
    server = ["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    drive = f"{client} -p {port} -k 500 -n 1000"
    done = run(NESTWALK, "capture", "--raw", "-o", out, "--until-ready", port, "--client", drive, "--", *server)
    assert done.returncode == 0, done.stderr
    assert "zipf_client: 500 keys set" in done.stderr
    assert " hits, 0 misses" in done.stderr
    blocks = list(raw.blocks(out.read_bytes()))
    assert max(b.tid for b in blocks) > 0, "redis has background threads"
    assert blocks[0].records[0].op == raw.VMA


def test_client_without_a_server(client):
    done = run(client, "-p", 1)
    assert done.returncode == 1
    assert done.stderr.startswith("zipf_client: cannot connect: ")


@pytest.mark.parametrize("arguments", [["-k", "1"], ["-z", "1"], ["-w", "101"], ["-p", "99999"]])
def test_client_refuses(client, arguments):
    assert run(client, *arguments).returncode == 2


def test_match_trees_finds_a_text_that_comes_again(tmp_path):
    """Random bytes, and the same again: each position of the repetition has one node, as far back as the one before.

    One in 80 has another one as well: 200,000 strings have 2^24 trees.
    """
    program = build("match_trees", tmp_path)
    assert program
    half = random.Random(1).randbytes(200_000)
    text = tmp_path / "text"
    text.write_bytes(half + half)

    def counts(start, count):
        done = run(program, text, 25, start, count)
        comments = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("#")]
        return {name: float(value) for name, value in comments}, tomllib.loads(done.stdout)

    (again, shares), (alone, shares_alone) = counts(201_000, 198_000), counts(100_000, 90_000)
    assert again["nodes"] == pytest.approx(1, abs=0.02)
    assert again["again"] > 0.95
    assert min(again["long"], alone["none"]) > 0.98
    assert again["misses_all"] < alone["misses_all"] + 0.1
    # 200,000 bytes back is in octave 17; there are 25 octaves to a dictionary of 2^25 bytes.
    assert shares["again_after"][17] > 980
    assert shares["passed"] > 980
    assert shares_alone["again_after"][17] == 0
    assert {len(shares[key]) for key in ("again", "again_after", "next", "kept", "first", "others")} == {25}
    assert len(shares["chain"]) == 16
    short = run(program, text, 25, 399_000, 2000)
    assert short.returncode == 2
    assert short.stderr.startswith("match_trees: ")
    assert short.stderr.count("\n") == 1


def test_copies_of_a_c_file_compile_together(tmp_path):
    """Functions, types and fields of each copy have names of their own, the C library's stay."""
    source, text = (
        tmp_path / "own.c",
        'struct s { int x; };\nstatic int f(struct s *s) { return printf("f %d", s->x); }\n',
    )
    source.write_text(f"#include <stdio.h>\n{text}int g(struct s *s) {{ return f(s); }}\n")
    preprocessed = tmp_path / "own.i"
    preprocessed.write_text(run("cc", "-E", source).stdout)
    done = run(sys.executable, PROGRAMS / "copies.py", preprocessed, "own.c", 3)
    assert done.returncode == 0, done.stderr
    copies = tmp_path / "copies.i"
    copies.write_text(done.stdout)
    assert run("cc", "-Wall", "-Werror", "-c", "-o", tmp_path / "copies.o", copies).returncode == 0
    names = run("nm", tmp_path / "copies.o").stdout.split()
    assert {"g", "g_1", "g_2", "f_2", "printf"} <= set(names)
    assert done.stdout.count('"f %d"') == 3
