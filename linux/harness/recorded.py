# SPDX-License-Identifier: GPL-2.0
"""Record two processes of a running guest for `nestwalk inspect`, with what the guest itself says of them.

    recorded.py KIND MODE FOLDER     e.g. recorded.py nestwalk 0 /some/folder

Writes FOLDER/frag-MODE.rec, FOLDER/sparse-MODE.rec, and FOLDER/MODE.json: what frag measured of its memory, and how many groups and
pages are reserved for the sparse process (debugfs). MODE is the value of vm.ptemagnet.
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
    build.deps()
    lines = qemu.boot(f"inspect-{kind}-{mode}", build.kernel(kind), build.initramfs(), "inspect", append=f"nw.mode={mode}")
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
        elif word == "RECORD":
            name, packed = rest.split()
            (folder / f"{name}-{mode}.rec").write_bytes(gzip.decompress(base64.b64decode(packed)))
    (folder / f"{mode}.json").write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
