# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sets and gets keys of a memcached at a port of this machine: ``memcached_client.py PORT KEYS GETS``."""

import random
import socket
import sys

BATCH = 100


def main() -> None:
    """Fills the cache, then reads random keys, a hundred to a request."""
    port, keys, gets = map(int, sys.argv[1:4])
    chance = random.Random(1)
    with socket.create_connection(("127.0.0.1", port), 60) as server:
        stream = server.makefile("rwb")
        for first in range(0, keys, BATCH):
            for key in range(first, min(first + BATCH, keys)):
                stream.write(b"set key%d 0 0 400\r\n%s\r\n" % (key, b"v" * 400))
            stream.flush()
            for _ in range(first, min(first + BATCH, keys)):
                assert stream.readline() == b"STORED\r\n"
        found = 0
        for _ in range(0, gets, BATCH):
            wanted = (b"key%d" % chance.randrange(keys) for _ in range(BATCH))
            stream.write(b"get " + b" ".join(wanted) + b"\r\n")
            stream.flush()
            while (line := stream.readline()) != b"END\r\n":
                found += line.startswith(b"VALUE")
    print(f"{found} values found")


if __name__ == "__main__":
    main()
