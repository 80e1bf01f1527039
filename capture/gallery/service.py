# SPDX-License-Identifier: MIT OR Apache-2.0
"""A small service: records by number, as JSON over HTTP on this machine. ``service.py PORT RECORDS``."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

RECORDS: dict[int, dict[str, object]] = {}


class Handler(BaseHTTPRequestHandler):
    """``GET /1,2,3`` answers with these records."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers."""
        wanted = [RECORDS[int(word)] for word in self.path.strip("/").split(",")]
        body = json.dumps(wanted).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    """Makes the records, then serves until it is ended."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(count):
        RECORDS[number] = {"id": number, "name": f"record {number}", "tags": [f"tag{number % 97}", f"tag{number % 89}"]}
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
