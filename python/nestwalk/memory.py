# SPDX-License-Identifier: MIT OR Apache-2.0
"""Whether there is memory enough for data frames, where it is limited (``ulimit -v``).

The library of data frames ends the whole process when an allocation fails: no exception, and no results. So it is tried
in another process, before anything is begun that would be lost.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from nestwalk.errors import NestwalkError

SPARE_BYTES = 1 << 28
"""Of address space, beside what the trial itself takes: stacks of threads, and small frames."""

_TRIAL = f"""
import io, polars, {{modules}}
frame = polars.DataFrame({{{{'x': range(1000)}}}})
frame.lazy().group_by('x').len().collect()
frame.write_parquet(io.BytesIO())
bytearray({SPARE_BYTES})
"""


def check_frames(what: str, remedy: str, modules: str = "nestwalk") -> None:
    """Refuses what needs data frames if they cannot be made; ``modules`` are what is loaded besides.

    Raises:
        NestwalkError: When they cannot; ``what`` says what that means, and ``remedy`` how to do without.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    done = subprocess.run([sys.executable, "-c", _TRIAL.format(modules=modules)], capture_output=True, check=False)
    if done.returncode:
        raise NestwalkError(f"{what} with {limit >> 20} MiB of memory (ulimit -v); allow more, or {remedy}")
