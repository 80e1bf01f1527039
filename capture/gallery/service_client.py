# SPDX-License-Identifier: MIT OR Apache-2.0
"""Asks service.py for random records: ``service_client.py PORT RECORDS REQUESTS``."""

import http.client
import json
import random
import sys

RECORDS_A_REQUEST = 20


def main() -> None:
    """One connection, one request after another."""
    port, count, requests = (int(word) for word in sys.argv[1:4])
    chance = random.Random(1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(requests):
        wanted = [chance.randrange(count) for _ in range(RECORDS_A_REQUEST)]
        connection.request("GET", "/" + ",".join(map(str, wanted)))
        found = json.loads(connection.getresponse().read())
        assert [record["id"] for record in found] == wanted
    print(f"{requests} requests answered")


if __name__ == "__main__":
    main()
