# SPDX-License-Identifier: MIT OR Apache-2.0
"""Instructions that the hot path executes, held against the stored counts.

Counts are repeatable for one compiler, whatever else the machine does, so they can fail a build where times cannot.
Each benchmark is run once and twice under callgrind: the difference is its work, without set-up.

    python benches/instructions.py [--update] [NAME ...]

Without names, all benchmarks. With --update the counts are stored instead.
"""

import os
import re
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "benches" / "instructions.toml"


def output(*command: str) -> tuple[str, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"instructions: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout, done.stderr


# Packages with benchmarks, and the example of each that repeats one. Both take the same arguments.
EXAMPLES = {"nestwalk-machine": "repeat", "nestwalk-cloud": "repeat_cloud"}


def executed(binary: str, name: str, times: int) -> tuple[int, int]:
    """Instructions of `times` repetitions with all their set-up, and how much one repetition does."""
    stdout, stderr = output(
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", binary, name, str(times), "data/traces"
    )
    collected = re.search(r"Collected : (\d+)", stderr)
    if collected is None:
        sys.exit(f"instructions: callgrind printed no count for {name}: {stderr.strip()}")
    return int(collected[1]), int(stdout)


def store(compiler: str, counts: dict[str, float]) -> None:
    """Stores `counts`, beside those that are stored of other benchmarks."""
    before = tomllib.loads(STORED.read_text())["instructions"] if STORED.exists() else {}
    lines = [f"{name} = {count:.2f}" for name, count in (before | counts).items()]
    head = (
        "# SPDX-License-Identifier: MIT OR Apache-2.0\n"
        "# Instructions an access (or a guest's fault, or an event of a VM), written by instructions.py --update.\n"
        f'compiler = "{compiler}"\ntolerance = 0.03\n\n[instructions]\n'
    )
    STORED.write_text(head + "\n".join(lines) + "\n")
    print(f"wrote {STORED.relative_to(ROOT)}")


def main() -> int:
    for package, example in EXAMPLES.items():
        output("cargo", "build", "--quiet", "--release", "--locked", "--package", package, "--example", example)
    metadata, _ = output("cargo", "metadata", "--format-version", "1", "--no-deps")
    target = re.search(r'"target_directory":"([^"]+)"', metadata)
    binaries = [f"{target[1] if target else 'target'}/release/examples/{example}" for example in EXAMPLES.values()]
    compiler = output("rustc", "--version")[0].strip()
    known = {name: binary for binary in binaries for name in output(binary, "--list")[0].split()}
    wanted = [argument for argument in sys.argv[1:] if argument != "--update"] or list(known)
    if unknown := set(wanted) - known.keys():
        print(f"instructions: no benchmark {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    # Counts do not depend on what else runs.
    runs = [(name, times) for name in wanted for times in (1, 2)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(runs, pool.map(lambda run: executed(known[run[0]], *run), runs), strict=True))
    counts = {name: (found[name, 2][0] - found[name, 1][0]) / found[name, 1][1] for name in wanted}
    if "--update" in sys.argv[1:]:
        store(compiler, counts)
        return 0
    stored = tomllib.loads(STORED.read_text())
    same_compiler = stored["compiler"] == compiler
    slower = 0
    for name, count in counts.items():
        if name not in stored["instructions"]:
            print(f"{name:20} {count:9.2f} instructions, none stored: run with --update")
            slower += 1
            continue
        ratio = count / stored["instructions"][name]
        verdict = "ok" if ratio <= 1 + stored["tolerance"] else "MORE"
        slower += verdict != "ok"
        print(
            f"{name:20} {count:9.2f} instructions, stored {stored['instructions'][name]:9.2f}, "
            f"ratio {ratio:.3f} {verdict}"
        )
    if not same_compiler:
        print(f"stored with {stored['compiler']}, counted with {compiler}: not held against each other")
        return 0
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
