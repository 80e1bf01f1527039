# SPDX-License-Identifier: GPL-2.0
"""Record two processes of a running guest for `nestwalk inspect`, with what the guest itself says of them.

    recorded.py KIND MODE FOLDER [SORTED]     e.g. recorded.py nestwalk 0 /some/folder

Writes FOLDER/frag-MODE.rec, FOLDER/sparse-MODE.rec, and FOLDER/MODE.json: what frag measured of its memory, and how
many groups and pages are reserved for the sparse process (debugfs). MODE is the value of vm.ptemagnet. With SORTED,
that of vm.sorted_page_tables, the names end in sorted instead of MODE, the recordings have the regions of both
processes, and the JSON has what debugfs says of frag's.
"""

import base64
import gzip
import json
import sys
from pathlib import Path

import build
import qemu


def main():
    kind, mode, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    ordered = sys.argv[4] if len(sys.argv) > 4 else ""
    name = "sorted" if ordered else mode
    build.deps()
    append = f"nw.mode={mode}" + (f" nw.sorted={ordered}" if ordered else "")
    lines = qemu.boot(f"inspect-{kind}-{name}", build.kernel(kind), build.initramfs(), "inspect", append=append)
    said = {"kind": kind, "mode": int(mode)}
    folder.mkdir(parents=True, exist_ok=True)
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "UP":
            said["kernel"] = rest.split()[-1]
        elif word == "FRAG":
            said["frag"] = json.loads(rest)
        elif word == "RESERVED":
            said["reserved_groups"], said["reserved_pages"] = map(int, rest.split())
        elif word == "REGION":
            said.setdefault("regions", []).append(rest)
        elif word == "RECORD":
            process, packed = rest.split()
            (folder / f"{process}-{name}.rec").write_bytes(gzip.decompress(base64.b64decode(packed)))
    (folder / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
