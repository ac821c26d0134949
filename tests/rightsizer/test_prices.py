"""What a GPU costs: the shipped list, a file of one's own with all its mistakes at once, OpenCost's metric."""

import dataclasses
import datetime
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
from rightsizer.model import FindingName, Fleet, Measured, Node, Plan, Verdict
from rightsizer.model.gpu_fractions import whole_gpus
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.report.rows import price_words
from rightsizer.usage.optional_metrics import node_prices
from simulator.manifests import labels
from simulator.prometheus import Prometheus
from simulator.series_store import Series
from simulator.specfile import preset
from tests.rightsizer.build import AT, pod
from tests.rightsizer.reported import decision, found, group
from tests.rightsizer.world import World

ROOT = pathlib.Path(__file__).parents[2]
HEAD = "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Prices\nsource: our own\ndate: 2026-11-01\n"


H100 = "NVIDIA-H100-80GB-HBM3"


def _node(model: str, **changes: str) -> Node:
    return Node("n", model, instance_type=changes.get("instance_type", ""), cloud=changes.get("cloud", ""))


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
        ("Tesla-T4", 0.526),
        ("NVIDIA-L4", 0.8048),
        ("NVIDIA-A10G", 1.006),
    ],
)
def test_prices_builtin_list_finds_model_by_gfd_or_driver_name(model: str, price: float) -> None:
    """As GPU Feature Discovery and as the driver write its name."""
    assert prices.load().of_node(_node(model)) == price


@pytest.mark.parametrize(
    "model", ["NVIDIA-L40", "NVIDIA-GH200-480GB", "NVIDIA-H20", "NVIDIA-A1000", "Tesla-T40", ""]
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
    assert whole_gpus(asked, node) == pytest.approx(whole, abs=0.01)


def test_prices_builtin_lists_have_source_currency_and_date() -> None:
    """Source, currency and a day that was; a region for a cloud."""
    shipped = prices.load()
    assert shipped.source.startswith("estimate by model")
    assert shipped.currency == "USD"
    assert set(shipped.clouds) == {"aws", "azure", "gcp", "oci"}
    sources = [prices.PriceSource(shipped.source, shipped.date, "any")]
    sources += [cloud.source for cloud in shipped.clouds.values()]
    for source in sources:
        assert source.name
        assert source.region
        assert datetime.date.fromisoformat(source.date) <= datetime.date(2026, 11, 21)


@pytest.mark.parametrize(
    ("cloud", "instance_type", "price"),
    [
        ("aws", "p5.48xlarge", 6.88),
        ("aws", "g4dn.12xlarge", 0.978),
        ("azure", "Standard_NC64as_T4_v3", 1.088),
        ("gcp", "a3-highgpu-8g", 11.0612),
        ("oci", "BM.GPU.H100.8", 10.0),
    ],
)
def test_prices_cloud_node_costs_share_of_its_instance(cloud: str, instance_type: str, price: float) -> None:
    """The instance's price in its cloud's list, divided by its GPUs, whatever its model costs elsewhere."""
    found = prices.load().find(_node(H100, cloud=cloud, instance_type=instance_type))
    assert found is not None
    assert found[0] == price
    assert found[1] == prices.load().clouds[cloud].source


@pytest.mark.parametrize(
    ("cloud", "instance_type"),
    [("aws", "BM.GPU.H100.8"), ("oci", "p5.48xlarge"), ("gcp", "Standard_NC4as_T4_v3"), ("azure", "")],
)
def test_prices_cloud_node_never_has_price_of_another_cloud(cloud: str, instance_type: str) -> None:
    """Neither by another cloud's type nor by model, which is another cloud's price, too."""
    assert prices.load().of_node(_node(H100, cloud=cloud, instance_type=instance_type)) is None


def test_prices_node_without_cloud_has_estimate_by_model() -> None:
    """A type that looks like a cloud's does not make it one's."""
    shipped = prices.load()
    found = shipped.find(_node(H100, instance_type="p5.48xlarge"))
    assert found == (10.0, prices.PriceSource(shipped.source, shipped.date))


@pytest.mark.parametrize("name", ["demo", "small", "fleet"])
def test_prices_every_card_of_simulated_presets_has_price(name: str) -> None:
    """So that the demo's money is all of it."""
    models = {
        labels(node)["nvidia.com/gpu.product"].removesuffix("-SHARED")
        for node in preset(name).nodes
        if node.gpus
    }
    assert models
    assert [model for model in models if prices.load().of_node(_node(model)) is None] == []


def test_prices_own_table_comes_before_shipped_lists(tmp_path: pathlib.Path) -> None:
    """By type and by model, on nodes of any cloud; what it does not say, the shipped lists say."""
    path = tmp_path / "prices.yaml"
    path.write_text(HEAD + "models: {'*A100*': 1.25}\ninstanceTypes: {p5.48xlarge: 2.5}\n")
    own = prices.load(path)
    assert own.of_node(_node(H100, cloud="aws", instance_type="p5.48xlarge")) == 2.5
    assert own.of_node(_node("NVIDIA-A100-SXM4-80GB", cloud="aws", instance_type="p4de.24xlarge")) == 1.25
    assert own.of_node(_node(H100, cloud="gcp", instance_type="a3-highgpu-8g")) == 11.0612
    assert own.of_node(_node("Tesla-T4")) == 0.526


def test_prices_own_table_in_other_currency_stands_alone(tmp_path: pathlib.Path) -> None:
    """Dollars are never added to euros."""
    path = tmp_path / "prices.yaml"
    path.write_text(HEAD + "currency: EUR\nmodels: {'*A100*': 1.25}\n")
    assert prices.load(path).of_node(_node("NVIDIA-A100-SXM4-80GB")) == 1.25
    assert prices.load(path).of_node(_node(H100)) is None


def test_prices_node_beats_instance_type_beats_model() -> None:
    """The nearer to the node, the better."""
    text = HEAD + "models: {'*H100*': 3}\ninstanceTypes: {big: 2}\n"
    priced = prices.parse(text.encode(), source="p")
    assert priced.of_node(_node("NVIDIA-H100")) == 3
    assert priced.of_node(_node("NVIDIA-H100", instance_type="big")) == 2


def test_prices_selected_nodes_have_their_own_prices() -> None:
    """The first whose labels a node has and that has its price, before types and models of all nodes."""
    text = HEAD + (
        "models: {'*H100*': 3}\ninstanceTypes: {big: 2}\nselected:\n"
        "- nodeSelector: {capacity: spot, region: eu}\n  source: auction\n  instanceTypes: {big: 0.5}\n"
        "- nodeSelector: {capacity: spot}\n  models: {'*H100*': 0.75}\n"
    )
    priced = prices.parse(text.encode(), source="p")

    def found(instance_type: str = "big", **labels: str) -> tuple[float, prices.PriceSource] | None:
        node = dataclasses.replace(_node("NVIDIA-H100", instance_type=instance_type), labels=labels)
        return priced.find(node)

    own = prices.PriceSource("our own", "2026-11-01")
    assert found(capacity="spot", region="eu") == (0.5, prices.PriceSource("auction", "2026-11-01"))
    assert found(instance_type="small", capacity="spot", region="eu") == (0.75, own)
    assert found(capacity="spot", region="us") == (0.75, own)
    assert found(capacity="reserved", region="eu") == (2, own)


NODES_THAT_DIFFER = {
    "same": ([("us-east-1", False)], ""),
    "unlabelled": ([("", False)], ""),
    "spot": (
        [("us-east-1", True)],
        "Amazon EC2's on-demand list is of us-east-1, but of these nodes 1 is spot; ",
    ),
    "both": (
        [("eu-west-1", False), ("eu-west-1", True), ("us-west-2", False), ("us-east-1", False)],
        (
            "Amazon EC2's on-demand list is of us-east-1, "
            "but of these nodes 2 are in eu-west-1, 1 is in us-west-2, 1 is spot; "
        ),
    ),
}


@pytest.mark.parametrize(("places", "words"), NODES_THAT_DIFFER.values(), ids=NODES_THAT_DIFFER)
def test_plan_tells_which_nodes_have_other_prices(places: list[tuple[str, bool]], words: str) -> None:
    """Those in another region than the list's, and spot; in the short form and in the document."""
    nodes = {
        f"n{number}": Node(
            f"n{number}",
            H100,
            8,
            cloud="aws",
            instance_type="p5.48xlarge",
            region=region,
            is_spot=is_spot,
        )
        for number, (region, is_spot) in enumerate(places)
    }
    decisions = [
        decision(group(name, node=name), found(FindingName.BUSY, Verdict.KEEP, "it worked")) for name in nodes
    ]
    fleet = Fleet(tuple(one.workload for one in decisions), nodes, {})
    plan = Plan(AT, "run-1", "policy.yaml", "", tuple(decisions), fleet, Measured(AT, {}))
    shipped = prices.load()
    accounts = cost_summary_of(plan, shipped)
    told = [line for line in price_words(accounts, shipped) if "--prices FILE" in line]
    assert told == ([f"{words}--prices FILE sets their prices."] if words else [])


BAD = {
    "empty": ("", "is empty; see docs/rightsizer.md for an example"),
    "no-prices": (HEAD, "line 1: has no price; give models, instanceTypes or selected"),
    "selected-without-prices": (
        HEAD + "selected:\n- nodeSelector: {a: b}\n",
        "line 6: selected[0]: has no price; give models, instanceTypes or both",
    ),
    "selects-all": (
        HEAD + "selected:\n- nodeSelector: {}\n  models: {a: 1}\n",
        "line 6: selected[0].nodeSelector: ",
    ),
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
    "unknown-cloud": (
        HEAD + "clouds:\n  awss: {}\n",
        "line 6: clouds.awss: unknown field; did you mean aws?",
    ),
    "cloud-without-prices": (
        HEAD + "clouds:\n  aws: {source: s, date: 2026-11-01, region: r, instanceTypes: {}}\n",
        "line 6: clouds.aws.instanceTypes: ",
    ),
    "cloud-without-date": (
        HEAD + "clouds:\n  aws: {source: s, region: r, instanceTypes: {a: 1}}\n",
        "line 6: clouds.aws.date: is missing",
    ),
    "alias": (HEAD + "models: {a: &x 1, b: *x}\n", "uses YAML aliases (*name); write the values out"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_prices_invalid_table_is_refused_with_line(text: str, words: str) -> None:
    """Each mistake is told where it stands."""
    with pytest.raises(PricesError) as caught:
        prices.parse(text.encode(), source="prices.yaml")
    assert str(caught.value).startswith("price table prices.yaml cannot be used (")
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
    """The price list, and the pages' templates, style and script."""
    [built] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(built).namelist()
    kinds = {".yaml", ".css", ".js", ".html"}
    packages = [ROOT / name for name in ("rightsizer", "rightsizer_history")]
    files = {path for package in packages for path in package.rglob("*.*") if path.suffix in kinds}
    assert {path.suffix for path in files} == kinds
    assert {str(path.relative_to(ROOT)) for path in files} <= set(names)


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
    assert prices["sources"] == [
        {
            "source": "our own",
            "region": None,
            "date": "2026-11-01",
            "nodes": 1,
            "nodesInOtherRegionsOrSpot": 0,
        }
    ]
    assert (prices["currency"], prices["source"], prices["date"]) == ("USD", "our own", "2026-11-01")
    assert prices["nodesByOpenCost"] == 0
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
