#!/usr/bin/env bash
# A step in a day field restricts it for Kubernetes's CronJobs, and does not for cronsim.
#
# Where both day fields are restricted, cron takes days that match either; else days that match both. Kubernetes reads
# schedules with robfig/cron, whose star bit a step above 1 clears. cronsim takes every field that begins with a star for
# unrestricted, as Debian's cron does. So `0 0 */2 * 1` is 18 or 19 days of a month for one, and two or three for the other.
#
# Versions: github.com/robfig/cron/v3 v3.0.1 (of kube-controller-manager 1.36), cronsim 2.8 (PyPI). Needs go and python3.
# Output seen, days of December 2026:
#   robfig/cron: 1 3 5 7 9 11 13 14 15 17 19 21 23 25 27 28 29 31
#   cronsim:     7 21
set -euo pipefail
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"

cat >go.mod <<'MOD'
module days

go 1.21

require github.com/robfig/cron/v3 v3.0.1
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

func main() {
	schedule, err := cron.ParseStandard("0 0 */2 * 1")
	if err != nil {
		panic(err)
	}
	fmt.Print("robfig/cron:")
	at := time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)
	for at = schedule.Next(at); at.Month() == 12; at = schedule.Next(at) {
		fmt.Print(" ", at.Day())
	}
	fmt.Println()
}
GO
go mod tidy >/dev/null 2>&1
go run . >seen

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check cronsim==2.8
venv/bin/python - >>seen <<'PY'
import datetime

import cronsim

days = []
for at in cronsim.CronSim("0 0 */2 * 1", datetime.datetime(2026, 11, 30, 23)):
    if at.month != 12:
        break
    days.append(str(at.day))
print("cronsim:    ", *days)
PY

diff - seen <<'EXPECTED'
robfig/cron: 1 3 5 7 9 11 13 14 15 17 19 21 23 25 27 28 29 31
cronsim:     7 21
EXPECTED
echo "as described"
