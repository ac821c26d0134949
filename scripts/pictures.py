"""Makes the pictures of README and docs: the demo in a terminal, the reports, the dashboard; `make pictures` runs it.

Everything shown is real output of the demo's cluster. The report is a screenshot. The dashboard's panels are drawn here
from the answers to their queries, because Grafana is not among this project's tools.
"""

import contextlib
import html
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dashboards.drawing import PALETTE
from dashboards.rows import ROWS
from simulator.cluster import Cluster
from simulator.dashboard_page import page
from simulator.kube_state import KINDS, kube_state_past
from simulator.prometheus import Prometheus
from simulator.recorded_rules import record
from simulator.specfile import preset
from tests.deploy.recorded import exporters_past, last_hours

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 300_000
"""Bytes of a picture."""
SHOWN = (
    r"  \$ gpu-rightsizer plan",
    r"\d+ GPUs, .* held",
    r"Unused: ",
    r"Cluster: ",
    r"APPLY CHANGES",
    r"training/Job/moe-finetune ",
    r"serving/Deployment/old-demo ",
    r"Applying this plan",
    r"  \$ gpu-rightsizer apply",
    r"done .*old-demo",
    r"verified .*moe-finetune",
    r"\d+ of \d+ done",
    r"  held before",
    r"  held now",
    r"  used ",
    r"  freed ",
    r"  \$ gpu-rightsizer undo",
    r"done .*undo",
)
"""Lines shown of the demo, in order, each with the lines indented below it."""
_BELOW = " " * 11
_ANSI = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "34": "u", "35": "m", "36": "c"}
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_TERMINAL_STYLE = (
    "text{font:13px 'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#d0d0d0;white-space:pre}"
    ".b{font-weight:bold;fill:#fff}.d{fill:#8a8a8a}.r{fill:#f2495c}.g{fill:#73bf69}.y{fill:#f2cc0c}"
    ".u{fill:#8ab8ff}.m{fill:#b877d9}.c{fill:#5fd7d7}"
)


def demo(folder: Path) -> str:
    """What `make demo` prints on a terminal."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "simulator.demo", "--directory", str(folder)]
    text = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=child, stderr=child) as process:
        os.close(child)
        with contextlib.suppress(OSError):  # a terminal ends with an error
            while part := os.read(parent, 65536):
                text += part.decode(errors="replace")
    if process.returncode:
        raise SystemExit(text)
    return text.replace("\r\n", "\n").replace(os.path.relpath(folder, ROOT), "build/demo")


def _printed(*arguments: str) -> str:
    command = [sys.executable, "-m", "rightsizer", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def excerpt(text: str) -> Iterator[str]:
    """The lines shown of the demo; an ellipsis stands for lines left out."""
    lines = text.replace(f"{ROOT}/", "").splitlines()
    plain = [_SGR.sub("", line) for line in lines]
    at = 0
    for pattern in SHOWN:
        begin = next(n for n in range(at, len(plain)) if re.match(pattern, plain[n]))
        if at and any(plain[at:begin]):
            yield "  \x1b[2m…\x1b[0m"
        at = next(n for n in range(begin + 1, len(plain)) if not plain[n].startswith(_BELOW))
        yield from lines[begin:at]


def terminal(lines: Sequence[str], title: str) -> str:
    """An SVG of a terminal."""
    width = max(len(_SGR.sub("", line)) for line in lines) * 7.85 + 40
    height = len(lines) * 18 + 62
    rows = "\n".join(f'<text x="20" y="{54 + 18 * n}">{_spans(line)}</text>' for n, line in enumerate(lines))
    dots = "".join(f'<circle cx="{20 + 18 * n}" cy="16" r="6" fill="{PALETTE[4 - n]}"/>' for n in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" role="img">\n'
        f"<title>{title}</title><style>{_TERMINAL_STYLE}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#1c1c24"/>{dots}'
        f'<text x="50%" y="21" text-anchor="middle" class="d">{title}</text>\n{rows}\n</svg>\n'
    )


def _spans(line: str) -> str:
    out, classes = [], ""
    for at, part in enumerate(_SGR.split(line)):
        if at % 2:
            classes = " ".join(_ANSI[code] for code in part.split(";") if code in _ANSI)
        elif part:
            text = html.escape(part, quote=False)
            out.append(f'<tspan class="{classes}">{text}</tspan>' if classes else text)
    return "".join(out)


def dashboard(cluster: Cluster, folder: Path) -> str:
    """A page with the first rows of the dashboard, over two hours of the demo's cluster."""
    with Prometheus(folder) as prometheus:
        seconds = last_hours(3.25)
        prometheus.write([*exporters_past(cluster, seconds, honor_labels=False)])
        objects = {kind: cluster.api.list(kind) for kind in KINDS} if cluster.api else {}
        prometheus.write([*kube_state_past(objects, seconds)])
        minutes = range(seconds[0], seconds[-1] + 1, 60)
        record(prometheus, minutes)
        return page(ROWS[:2], prometheus, minutes[-121:], skip_empty=True)


def screenshot(page: str, target: Path, size: str) -> None:
    """A page as a browser shows it, as PNG."""
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page)
        where = [f"--user-data-dir={folder}/profile", f"--screenshot={target}", f"--window-size={size}"]
        command = ["chromium", *flags.split(), *where, file.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> int:
    """Make all pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (PICTURES / "demo.svg").write_text(terminal(list(excerpt(demo(folder / "demo"))), "make demo"))
        plan = (folder / "demo" / "plan.html").read_text().replace(f"{ROOT}/", "")
        screenshot(plan, PICTURES / "report.png", "1200,900")
        ledger = _printed(
            "report", "-o", "html", "--since", "1d", "--ledger", str(folder / "demo" / "ledger")
        )
        screenshot(ledger, PICTURES / "ledger.png", "1200,900")
        with Cluster(preset("demo"), folder / "cluster") as cluster:
            screenshot(dashboard(cluster, folder / "hours"), PICTURES / "dashboard.png", "1400,1230")
    large = [path.name for path in PICTURES.iterdir() if path.stat().st_size > LARGEST]
    return int(bool(large) and sys.stderr.write(f"larger than {LARGEST} bytes: {', '.join(large)}\n"))


if __name__ == "__main__":
    sys.exit(main())
