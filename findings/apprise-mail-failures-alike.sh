#!/usr/bin/env bash
# Apprise warns of every failed mail in the same words; what the server answered is in a message of level debug alone.
#
# A server that refuses the password, one that offers no STARTTLS and one that is not there all give "Connection error while
# submitting email", though the first two were connected. Whoever shows the warnings of Apprise, as its own notify() returns
# no more than False, sends people to look at the network.
#
# Version: apprise 2.3.0 (PyPI). Needs python3.
# Output seen:
#   password refused   warns Connection error while submitting email to "localhost"; debug has 535
#   no STARTTLS        warns Connection error while submitting email to "localhost"; debug has STARTTLS
#   no server          warns Connection error while submitting email to "localhost"; debug has refused
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check apprise==2.3.0
venv/bin/python - >seen <<'PY'
import logging
import re
import socketserver
import threading

import apprise


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.say("220 here")
        while line := self.rfile.readline():
            word = line.split()[0].upper()
            self.say(
                {
                    b"EHLO": "250-localhost\r\n250 AUTH PLAIN",
                    b"AUTH": "535 no",
                    b"QUIT": "221 bye",
                }.get(word, "250 fine")
            )

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


def told(name, url, look):
    with apprise.LogCapture(level=logging.DEBUG, fmt="%(levelname)s %(message)s") as captured:
        sender = apprise.Apprise()
        sender.add(url)
        assert not sender.notify(title="a title", body="a text")
        lines = captured.getvalue().splitlines()
    (warning,) = {line for line in lines if line.startswith("WARNING")}
    (debug,) = {found[0] for line in lines if line.startswith("DEBUG Socket") and (found := re.search(look, line))}
    print(f"{name:18} warns {warning.partition(' ')[2]}; debug has {debug}")


logging.getLogger("apprise").propagate = False
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rest = f"://me:secret@localhost:{server.server_address[1]}?from=me@example.com&to=you@example.com"
    told("password refused", f"mailto{rest}", r"\b535\b")
    told("no STARTTLS", f"mailtos{rest}", r"\bSTARTTLS\b")
    server.shutdown()
told("no server", f"mailto{rest}", r"\brefused\b")
PY

diff - seen <<'EXPECTED'
password refused   warns Connection error while submitting email to "localhost"; debug has 535
no STARTTLS        warns Connection error while submitting email to "localhost"; debug has STARTTLS
no server          warns Connection error while submitting email to "localhost"; debug has refused
EXPECTED
echo "as described"
