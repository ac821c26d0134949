"""What a GPU costs: the shipped list, a file of one's own with all its mistakes at once, OpenCost's metric."""

import datetime
import importlib.resources
import json
import math
import pathlib
import time
import zipfile

import pytest
from hatchling.builders.wheel import WheelBuilder

from rightsizer import prices
from rightsizer.config import PrometheusSettings
from rightsizer.errors import ConfigurationError, PricesError
from rightsizer.model import Node
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.usage.optional_metrics import node_prices
from simulator.prometheus import Prometheus, Series
from tests.rightsizer.build import pod
from tests.rightsizer.world import World

ROOT = pathlib.Path(__file__).parents[2]
HEAD = "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Prices\nsource: our own\ndate: 2026-11-01\n"


def _node(model: str, **changes: str) -> Node:
    return Node("n", model, instance_type=changes.get("instance_type", ""))


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("NVIDIA-H100-80GB-HBM3", 10.0),
        ("NVIDIA H100 PCIe", 10.0),
        ("NVIDIA-A100-SXM4-80GB", 4.0),
        ("NVIDIA-A100-PCIE-40GB", 3.05),
        ("NVIDIA-A10", 2.0),
        ("NVIDIA-GB200", 16.0),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", 4.5),
        ("Tesla-V100-SXM2-16GB", 2.95),
    ],
)
def test_prices_builtin_list_finds_model_by_gfd_or_driver_name(model: str, price: float) -> None:
    """As GPU Feature Discovery and as the driver write its name."""
    assert prices.load().of_node(_node(model)) == price


@pytest.mark.parametrize(
    "model", ["NVIDIA-A10G", "NVIDIA-GH200-480GB", "NVIDIA-H20", "NVIDIA-A1000", "Tesla-T4", ""]
)
def test_prices_similar_model_name_has_no_price(model: str) -> None:
    """What is not on the list costs what nobody knows, not what the next one costs."""
    assert prices.load().of_node(_node(model)) is None


@pytest.mark.parametrize(
    ("resources", "devices", "whole"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 6000, "nvidia.com/gpucores": 40}, 1, 0.4),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 7680}, 2, 1.0),
        ({"nvidia.com/gpumem-percentage": 25}, 1, 0.25),
        ({"nvidia.com/gpu": 1}, 1, 1.0),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, 1, 1.0),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 60_000}, 1, 1.0),
        ({"aliyun.com/gpu-mem": 6}, 1, 0.4),
        ({"example.com/gpu-mem": 6}, 1, 1.0),
    ],
)
def test_prices_fractional_gpu_costs_its_fraction(
    resources: dict[str, int], devices: int, whole: float
) -> None:
    """Memory and cores are no GPUs: 6,000 MiB and 40 % of a T4 are the larger of both, never more than its devices.

    Who asks HAMi for no memory gets all of it.
    """
    node = Node("n", "Tesla-T4", gpus=4, memory_bytes=15360 << 20, sharing="hami", allocatable=resources)
    asked = pod(devices=devices, resources=resources)
    assert prices.whole_gpus(asked, node) == pytest.approx(whole, abs=0.01)


def test_prices_builtin_list_has_source_currency_and_date() -> None:
    """Source, currency and a day that was."""
    shipped = prices.load()
    assert shipped.source
    assert shipped.currency == "USD"
    assert datetime.date.fromisoformat(shipped.date) <= datetime.date(2026, 11, 21)


def test_prices_node_beats_instance_type_beats_model() -> None:
    """The nearer to the node, the better."""
    text = HEAD + "models: {'*H100*': 3}\ninstanceTypes: {big: 2}\n"
    priced = prices.parse(text.encode(), source="p")
    assert priced.of_node(_node("NVIDIA-H100")) == 3
    assert priced.of_node(_node("NVIDIA-H100", instance_type="big")) == 2


BAD = {
    "empty": ("", "is empty; see docs/rightsizer.md for an example"),
    "no-prices": (HEAD, "line 1: has no price; give models, instanceTypes or both"),
    "unknown-field": (HEAD + "modells: {a: 1}\n", "line 5: modells: unknown field; did you mean models?"),
    "negative": (HEAD + "models:\n  a: 1\n  b: -1\n", "line 7: models.b: input should be greater than 0"),
    "nothing": (
        HEAD + "models: {a: 1, b: }\n",
        "line 5: models.b: has no value; write one, or remove the field",
    ),
    "zero": (HEAD + "models: {a: 0}\n", "line 5: models.a: input should be greater than 0"),
    "not-a-number": (HEAD + "models: {a: .nan}\n", "line 5: models.a: input should be a finite number"),
    "endless": (HEAD + "models: {a: .inf}\n", "line 5: models.a: input should be"),
    "words": (HEAD + "models: {a: $3}\n", "line 5: models.a: input should be a valid number"),
    "by-the-month": (
        HEAD + "models: {a: 90000}\n",
        "line 5: models.a: input should be less than or equal to 10000",
    ),
    "no-name": (HEAD + "models: {'': 3}\n", "line 5: models.'': is empty"),
    "twice": (HEAD + "models: {a: 1, a: 2}\n", "line 5: models.a: is given twice; first in line 5"),
    "list": (HEAD + "models: [1]\n", "line 5: models: must be a mapping of fields"),
    "no-day": (
        HEAD.replace("11-01", "13-01") + "models: {a: 1}\n",
        "line 4: date: '2026-13-01' is not a date",
    ),
    "currency": (
        HEAD + "currency: dollars\nmodels: {a: 1}\n",
        "line 5: currency: must match '^[A-Z]{3}$'",
    ),
    "other-kind": (
        HEAD.replace("Prices", "Policy") + "models: {a: 1}\n",
        "line 2: kind: must be Prices",
    ),
    "other-version": (
        HEAD.replace("v1alpha1", "v9") + "models: {a: 1}\n",
        "line 1: apiVersion: input should be",
    ),
    "no-source": (HEAD.replace("source: our own\n", "") + "models: {a: 1}\n", "line 1: source: is missing"),
    "alias": (HEAD + "models: {a: &x 1, b: *x}\n", "uses YAML aliases (*name); write the values out"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_prices_invalid_table_is_refused_with_line(text: str, words: str) -> None:
    """Each mistake is told where it stands."""
    with pytest.raises(PricesError) as caught:
        prices.parse(text.encode(), source="prices.yaml")
    assert str(caught.value).startswith("price table prices.yaml cannot be used, ")
    assert words in str(caught.value)


def test_prices_several_mistakes_are_reported_in_file_order() -> None:
    """One per line, in the order of the file."""
    text = HEAD.replace("2026-11-01", "soon") + "models: {a: -1}\nmodel: {}\n"
    with pytest.raises(PricesError, match="3 problems") as caught:
        prices.parse(text.encode(), source="p")
    assert [problem.line for problem in caught.value.problems] == [4, 5, 6]


def test_prices_missing_table_is_refused_with_file_name(tmp_path: pathlib.Path) -> None:
    """The file is named, and why it cannot be read."""
    with pytest.raises(
        ConfigurationError, match=r"price table file .*gone.yaml: cannot be read: No such file"
    ):
        prices.load(tmp_path / "gone.yaml")


def test_wheel_contains_runtime_data_files(tmp_path: pathlib.Path) -> None:
    """The price list, and the page's style and script."""
    [built] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(built).namelist()
    for asset in ("prices.yaml", "report/assets/page.css", "report/assets/page.js"):
        assert f"rightsizer/{asset}" in names
        assert importlib.resources.files("rightsizer").joinpath(asset).is_file()


def _series(value: float, **labels: str) -> Series:
    now = int(time.time())
    return Series({"__name__": "node_gpu_hourly_cost", **labels}, range(now - 60, now, 15), [value] * 4)


@pytest.mark.prometheus
def test_prices_opencost_highest_positive_series_wins(tmp_path: pathlib.Path) -> None:
    """The highest possible one of a node's, since any scraped pod may write some; through honor_labels: false."""
    with Prometheus(tmp_path) as prometheus:
        client = Client(PrometheusSettings(prometheus.url))
        assert node_prices(client, client.now()) == {}
        prometheus.write(
            [
                _series(2.5, node="a", cluster="x", instance="1"),
                _series(2.4, node="a", cluster="x", instance="2"),
                _series(9.0, node="a", cluster="y"),
                _series(0.0, node="free", cluster="x"),
                _series(-1.0, node="odd", cluster="x"),
                _series(math.nan, node="unknown", cluster="x"),
                _series(1e308, node="a", cluster="x", instance="tenant"),
                _series(1e308, node="invented", cluster="x"),
                _series(3.0, node="opencosts-own", exported_node="b", cluster="x"),
            ]
        )
        found = node_prices(client, client.now(), {"cluster": "x"})
    assert found == {"a": 2.5, "b": 3.0}


@pytest.mark.prometheus
def test_plan_with_prices_names_price_source(world: World) -> None:
    """Those of --prices, wherever it stands: in the document and in the table."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    table = world.directory / "prices.yaml"
    table.write_text(HEAD + "models: {'*': 3}\n")
    prices = json.loads(world.run("plan", "-o", "json", "--prices", str(table)).out)["totals"]["prices"]
    assert prices == {"currency": "USD", "source": "our own", "date": "2026-11-01", "nodesByOpenCost": 0}
    table.write_text(HEAD)
    run = world.run("plan", "--prices", str(table))
    assert (run.code, run.out) == (2, "")
    assert "has no price" in run.err


@pytest.mark.prometheus
@pytest.mark.parametrize("form", ["wide", "csv", "markdown", "html"])
def test_plan_with_prices_lists_workload_in_each_format(world: World, form: str) -> None:
    """The workload stands in it."""
    world.add("Deployment", world.team, "quiet", {"replicas": 2})
    run = world.run("plan", "-o", form)
    assert (run.code, run.err) == (0, "")
    assert "quiet" in run.out
