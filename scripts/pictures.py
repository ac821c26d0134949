"""Makes the pictures of README: the demo in a terminal, the HTML report, the dashboard; `make pictures` runs it.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboards.panels import Kind, Panel
from dashboards.rows import ROWS, VARIABLES
from simulator.cluster import Cluster
from simulator.prometheus import Prometheus
from simulator.specfile import preset
from tests.deploy.recorded import ask_range, exporters_past, kube_state_metrics, last_hours, record

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 300_000
"""Bytes of a picture."""
FEW = 8
"""Below it, an axis has decimals."""
SHOWN = (
    r"  \$ gpu-rightsizer plan",
    r"\d+ GPUs, .* held",
    r"Idle: ",
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
    r"  \$ gpu-rightsizer undo",
    r"done .*undo",
)
"""Lines shown of the demo, in order, each with the lines indented below it."""
_BELOW = " " * 11
PALETTE = (
    "#73bf69",
    "#f2cc0c",
    "#8ab8ff",
    "#ff780a",
    "#f2495c",
    "#5794f2",
    "#b877d9",
    "#705da0",
    "#37872d",
    "#fade2a",
)
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


def report(cluster: Cluster, folder: Path) -> str:
    """The HTML report of a plan of the demo's cluster, with a day of history."""
    with Prometheus(folder) as prometheus:
        cluster.write_history(prometheus, hours=24.5, step_s=15)
        command = [
            sys.executable,
            "-m",
            "rightsizer",
            "plan",
            "-o",
            "html",
            "--policy",
            "simulator/demo-policy.yaml",
        ]
        where = ["--kubeconfig", str(cluster.kubeconfig), "--prometheus-url", prometheus.url]
        run = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout


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
        prometheus.write([*kube_state_metrics(cluster.api.list("Pod") if cluster.api else [], seconds)])
        minutes = range(seconds[0], seconds[-1] + 1, 60)
        record(prometheus, minutes)
        rows = [
            (row.title, [(panel, _answers(panel, prometheus, minutes)) for panel in row.panels])
            for row in ROWS
        ]
    shown = "".join(
        f"<h2>⌄ {html.escape(title)}</h2>"
        + "".join(_panel(panel, found) for panel, found in panels if any(found))
        for title, panels in rows[:2]
    )
    style = (
        "body{background:#111217;color:#ccccdc;font:13px DejaVu Sans,sans-serif;margin:8px;width:1384px;zoom:.999}"
        "h2{font-size:14px;margin:10px 4px 2px;clear:both}h3{font-size:12px;margin:0 0 4px;font-weight:500}"
        ".p{float:left;box-sizing:border-box;background:#181b1f;border:1px solid #2c2e33;padding:8px;margin:3px;"
        "overflow:hidden}.n{font-size:38px;text-align:center;margin-top:16px}table{width:100%;border-collapse:collapse}"
        "td,th{text-align:left;border-bottom:1px solid #2c2e33;padding:3px 8px;font-size:12px}th{color:#6e9fff}"
        ".l{font-size:11px;white-space:nowrap}.l b{margin:0 4px 0 10px}p{clear:both;color:#888;padding:6px}"
    )
    note = "Panels of dashboards/grafana.json, drawn by scripts/pictures.py from the data of `make demo`."
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{shown}<p>{note}</p>"


def _answers(panel: Panel, prometheus: Prometheus, minutes: range) -> list[list[dict[str, Any]]]:
    def filled(expression: str) -> str:
        for variable in VARIABLES:
            expression = expression.replace(f'"${variable.name}"', '".*"')
        return expression.replace("$__range", "2h")

    if panel.kind is Kind.LINES:
        return [ask_range(prometheus, filled(query.expr), minutes[-121:]) for query in panel.queries]
    return [prometheus.query(filled(query.expr), at_s=minutes[-1]) for query in panel.queries]


def _panel(panel: Panel, found: list[list[dict[str, Any]]]) -> str:
    width, height = panel.width * 57.5 - 6, panel.height * 32 - 6
    match panel.kind:
        case Kind.STAT:
            body = _stat(panel, found)
        case Kind.LINES:
            body = _lines(panel, found, width - 18, height - 62)
        case _:
            body = _table(panel, found)
    title = html.escape(panel.title)
    return f'<div class=p style="width:{width}px;height:{height}px"><h3>{title}</h3>{body}</div>'


def _stat(panel: Panel, found: list[list[dict[str, Any]]]) -> str:
    value = float(found[0][0]["value"][1])
    colour = [name for name, least in panel.steps if least is None or value >= least][-1]
    shade = {"green": "#73bf69", "orange": "#ff9830", "blue": "#5794f2"}.get(colour, "#f2495c")
    return f'<div class=n style="color:{shade}">{value:.{panel.decimals or 0}f}</div>'


def _name(name: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda match: labels.get(match[1], ""), name).strip() or "(none)"


def _lines(panel: Panel, found: list[list[dict[str, Any]]], width: float, height: float) -> str:
    tracks = [
        (_name(query.name, track["metric"]), {int(at): float(value) for at, value in track["values"]})
        for query, answer in zip(panel.queries, found, strict=True)
        for track in answer
    ]
    instants = sorted({at for _, values in tracks for at in values})
    below = dict.fromkeys(instants, 0.0)
    paths, drawn = [], []
    for _, values in tracks:
        top = {at: value + below[at] for at, value in values.items()}
        drawn.append((top, dict(below)))
        if panel.is_stacked:
            below |= top
    most = (
        panel.maximum or max((value for top, _ in drawn for value in top.values()), default=1.0) * 1.1 or 1.0
    )

    def across(at: int) -> float:
        return 34 + (at - instants[0]) / (instants[-1] - instants[0]) * (width - 40)

    def up(value: float) -> float:
        return 4 + (height - 20) * (1 - value / most)

    for colour, (top, base) in zip(PALETTE * 2, drawn, strict=False):
        points = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in sorted(top.items()))
        if panel.is_stacked:
            floor = " ".join(f"{across(at):.1f},{up(base[at]):.1f}" for at in sorted(top, reverse=True))
            paths.append(f'<polygon points="{points} {floor}" fill="{colour}" fill-opacity=".25"/>')
        paths.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for part in range(5):
        y = up(most * part / 4)
        label = (
            f"{most * part / 4:.0%}"
            if panel.unit == "percentunit"
            else f"{most * part / 4:.{int(most < FEW)}f}"
        )
        paths.append(
            f'<path d="M34 {y:.1f}H{width:.0f}" stroke="#2c2e33"/><text x="28" y="{y + 4:.1f}">{label}</text>'
        )
    for at in instants[:: max(1, len(instants) // 4)][1:]:
        clock = time.strftime("%H:%M", time.gmtime(at))
        paths.append(f'<text x="{across(at):.1f}" y="{height - 1:.1f}">{clock}</text>')
    legend = "".join(
        f'<b style="color:{colour}">━</b>{html.escape(name)}'
        for colour, (name, _) in zip(PALETTE * 2, tracks, strict=False)
    )
    size = f'width="{width}" height="{height}" font-size="10" fill="#999" text-anchor="end"'
    return f"<svg {size}>{''.join(paths)}</svg><div class=l>{legend}</div>"


def _table(panel: Panel, found: list[list[dict[str, Any]]]) -> str:
    rows: dict[tuple[str, ...], dict[str, float]] = {}
    queries = [(query, answer) for query, answer in zip(panel.queries, found, strict=True) if answer]
    for query, answer in queries:
        for one in answer:
            key = tuple(one["metric"].get(label, "") for label in panel.columns)
            rows.setdefault(key, {})[query.name] = float(one["value"][1])
    heads = [*panel.columns.values(), *(query.name for query, _ in queries)]
    ordered = sorted(rows.items(), key=lambda row: -max(row[1].values()))
    cells = [
        [*key, *(_figure(values.get(query.name), query.unit or panel.unit) for query, _ in queries)]
        for key, values in ordered
    ]
    lines = [_row("th", heads), *(_row("td", row) for row in cells)]
    return f"<table>{''.join(lines)}</table>"


def _row(tag: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


def _figure(value: float | None, unit: str) -> str:
    match unit:
        case _ if value is None:
            return ""
        case "percentunit":
            return f"{value:.0%}"
        case "bytes":
            return f"{value / 2**30:.1f} GiB"
        case _:
            return f"{value:.1f}" + (" h" if unit == "h" else "")


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
        with Cluster(preset("demo"), folder / "cluster") as cluster:
            screenshot(report(cluster, folder / "day"), PICTURES / "report.png", "1200,900")
            screenshot(dashboard(cluster, folder / "hours"), PICTURES / "dashboard.png", "1400,1230")
    large = [path.name for path in PICTURES.iterdir() if path.stat().st_size > LARGEST]
    return int(bool(large) and sys.stderr.write(f"larger than {LARGEST} bytes: {', '.join(large)}\n"))


if __name__ == "__main__":
    sys.exit(main())
