#!/usr/bin/env bash
# VictoriaMetrics 1.79 hides the last 30 seconds unless `nocache=1` is asked; `latency_offset`, which does that later, does not.
#
# -search.latencyOffset (30 s) is the documented reason that the newest samples are missing, and later versions take
# latency_offset in a request. 1.79 ignores it without a word. What helps there is the switch of another thing, the cache of
# responses, and only in instant queries: a range query with a step of 5 s repeats the value of 30 seconds ago, whatever is
# asked, and one with a step of a minute shows the newest value, whatever is asked.
#
# Version: Debian's victoria-metrics 1.79.5+ds1-2+b5 (bookworm). Needs apt-get, dpkg, curl and python3; one sample every 5 s.
# Output seen, the age in seconds of the newest sample that was told:
#   latency_offset=1ms           instant 30  step of 5 s 30  step of 60 s 5
#   nocache=1                    instant 5  step of 5 s 30  step of 60 s 5
#   none                         instant 30  step of 5 s 30  step of 60 s 5
set -euo pipefail
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$work"' EXIT
cd "$work"

apt-get -o APT::Sandbox::User=root download victoria-metrics=1.79.5+ds1-2+b5 >log 2>&1 || { cat log; exit 1; }
dpkg -x victoria-metrics_*.deb taken
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
at="http://127.0.0.1:$port"
taken/usr/bin/victoria-metrics -storageDataPath=data "-httpListenAddr=127.0.0.1:$port" >server.log 2>&1 &
server=$!
for _ in $(seq 100); do curl -sf "$at/health" >/dev/null && break || sleep 0.1; done

# The value of each sample is its age.
now=$(date +%s)
python3 - "$now" >rows <<'PY'
import json, sys
times = range(int(sys.argv[1]) - 600, int(sys.argv[1]), 5)
ages = [int(sys.argv[1]) - each for each in times]
print(json.dumps({"metric": {"__name__": "age"}, "timestamps": [each * 1000 for each in times], "values": ages}))
PY
curl -sf --data-binary @rows "$at/api/v1/import"
curl -sf "$at/internal/force_flush"

newest() {
  curl -sfg "$at/api/v1/$1&$2" | python3 -c '
import json, sys
(row,) = json.load(sys.stdin)["data"]["result"]
print((row.get("values") or [row["value"]])[-1][1])'
}
for asked in none latency_offset=1ms nocache=1; do
  instant=$(newest "query?query=min_over_time(age[2m])&time=$now" "$asked")
  fine=$(newest "query_range?query=age&start=$((now - 40))&end=$now&step=5s" "$asked")
  coarse=$(newest "query_range?query=age&start=$((now - 240))&end=$now&step=60s" "$asked")
  printf '%-28s instant %s  step of 5 s %s  step of 60 s %s\n' "$asked" "$instant" "$fine" "$coarse"
done | sort >seen

diff - seen <<'EXPECTED'
latency_offset=1ms           instant 30  step of 5 s 30  step of 60 s 5
nocache=1                    instant 5  step of 5 s 30  step of 60 s 5
none                         instant 30  step of 5 s 30  step of 60 s 5
EXPECTED
echo "as described"
