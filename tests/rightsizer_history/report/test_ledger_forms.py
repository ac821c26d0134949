"""The forms of a ledger's account: byte for byte, in 80 columns, and inert whatever the names are."""

import csv
import dataclasses
import datetime
import json
from pathlib import Path

import jsonschema
import pytest

from rightsizer_history.ledger import BY
from rightsizer_history.ledger.sums import LEADERS, ClusterTime, Hours, LedgerAccount, LedgerPart, Reclaim
from rightsizer_history.report import CSV, LEDGER_FORMS, form
from rightsizer_history.report.ledger import FOCUS, focus_csv
from tests.conftest import Golden
from tests.rightsizer.build import AT
from tests.rightsizer.hostile import EVERYTHING
from tests.rightsizer.markup import elements, outline, skeleton

DAY = datetime.timedelta(days=1)
FILES = {"table": "ledger.txt", "json": "ledger.json", "yaml": "ledger.yaml", "markdown": "ledger.md"}
FILES |= {"html": "ledger.dom"}
SCHEMA = json.loads((Path(__file__).parents[3] / "docs/ledger.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def _hours(held: float) -> Hours:
    return Hours(held, held * 0.4, held * 0.1, held * 0.2, held * 2.5, held * 1.25, 0.0)


def _account(name: str = "research") -> LedgerAccount:
    parts = tuple(
        LedgerPart(f"{name}-{place}" if place else "", _hours(1000.0 / (place + 1)), place, place / 2)
        for place in range(12)
    )
    trend = {(AT - DAY * back).date(): _hours(100.0 + back) for back in (2, 1, 0)}
    return LedgerAccount(
        begin=AT - 2 * DAY,
        end=AT,
        by="team",
        currency="USD",
        clusters=(ClusterTime("prod-eu", 48.0, 2000.0), ClusterTime("prod-us", 40.5, None)),
        total=_hours(303.0),
        parts=parts,
        leaders=parts[:LEADERS],
        more_leaders=2,
        trend=trend,
        reclaim=Reclaim(4, 26.0, 3.0, 310.0, 775.0, 0.0, 2.0, 1.5),
        problems=(f"/ledger/{name}.parquet: left out, cannot be read: it is empty",),
    )


@pytest.mark.parametrize("name", FILES)
def test_ledger_each_format_matches_golden_file(name: str, golden: Golden) -> None:
    """Everything that an account can hold."""
    text = form(name, LEDGER_FORMS)(_account())
    golden(FILES[name], outline(text) if name == "html" else text)


def test_ledger_forms_are_all_tested() -> None:
    """CSV is made of charges."""
    assert {*FILES, CSV} == set(LEDGER_FORMS)


@pytest.mark.parametrize("currency", ["USD", ""])
def test_ledger_json_matches_the_published_schema(currency: str) -> None:
    """With and without money; the schema allows no other field, and every key of `--by`."""
    account = dataclasses.replace(_account(), currency=currency)
    document = json.loads(form("json", LEDGER_FORMS)(account))
    VALIDATOR.validate(document)
    for name in document:
        assert not VALIDATOR.is_valid({key: value for key, value in document.items() if key != name})
    for name, part in (("total", document["total"]), ("reclaimed", document["reclaimed"])):
        assert not VALIDATOR.is_valid({**document, name: {**part, "new": 1}})
    for name in ("parts", "heldMostUnused", "trend"):
        assert not VALIDATOR.is_valid({**document, name: [{**document[name][0], "new": 1}]})
    assert set(SCHEMA["properties"]["by"]["enum"]) == set(BY)


def test_ledger_table_fits_80_columns() -> None:
    """Also with long names and large numbers."""
    wide = dataclasses.replace(_account("a-namespace-with-a-very-long-name-indeed"), total=_hours(9e9))
    assert max(map(len, form("table", LEDGER_FORMS)(wide).splitlines())) <= 80


def test_ledger_without_a_price_has_no_money() -> None:
    """Several currencies are never added up, and no price is no zero."""
    several = dataclasses.replace(_account(), currency="")
    assert "WASTED" not in form("table", LEDGER_FORMS)(several)
    document = json.loads(form("json", LEDGER_FORMS)(several))
    assert (document["currency"], document["total"]["cost"], document["reclaimed"]["cost"]) == (None,) * 3


def test_ledger_cost_without_a_price_is_unknown_not_zero() -> None:
    """Of a part, and in words for the rest."""
    part = LedgerPart("t4", Hours(10.0, 5.0, unpriced=10.0))
    mixed = dataclasses.replace(_account(), parts=(part,), total=Hours(20.0, 5.0, cost=25.0, unpriced=10.0))
    text = form("table", LEDGER_FORMS)(mixed)
    assert "unknown for 10 GPU-hours" in " ".join(text.split())
    (line,) = [line for line in text.splitlines() if line.startswith("t4")]
    assert line.split()[-2:] == ["?", "?"]
    told = json.loads(form("json", LEDGER_FORMS)(mixed))
    assert (told["parts"][0]["cost"], told["total"]["cost"]) == (None, 25.0)


@pytest.mark.parametrize("word", EVERYTHING)
def test_ledger_hostile_names_stay_text(word: str) -> None:
    """In the terminal, on the page, and in a spreadsheet."""
    text = form("table", LEDGER_FORMS)(_account(word))
    assert text.replace("\n", "").isprintable()
    page = form("html", LEDGER_FORMS)(_account(word))
    assert skeleton(page) == skeleton(form("html", LEDGER_FORMS)(_account()))
    charge = dict.fromkeys(("cluster", "namespace", "kind", "name", "owner", "team", "priority_class"), word)
    charge |= {"model": word, "currency": "USD"}
    _, line = focus_csv([{**charge, "day": AT.date(), "hours": _hours(1.0)}])
    (cells,) = csv.reader([line])
    assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)


def test_ledger_page_has_a_name_for_each_picture_and_heads_for_each_table() -> None:
    """For those who do not see it."""
    found = elements(form("html", LEDGER_FORMS)(_account()))
    pictures = [attributes for name, attributes in found if name == "svg" and "aria-hidden" not in attributes]
    assert pictures
    assert all(one["role"] == "img" and one["aria-label"] for one in pictures)
    assert all(attributes.get("scope") in {"col", "row"} for name, attributes in found if name == "th")


def test_focus_csv_has_the_mandatory_columns_of_a_usage_charge() -> None:
    """Periods are whole days and months; the tags are JSON; the four costs are one amount."""
    charge = {
        "cluster": "prod",
        "namespace": "research",
        "kind": "Job",
        "name": "train",
        "owner": "research/Job/train",
    }
    charge |= {"team": "vision", "priority_class": "low", "model": "H100", "currency": "EUR"}
    head, line = focus_csv([{**charge, "day": datetime.date(2026, 12, 31), "hours": _hours(10.0)}])
    row = dict(zip(head.strip().split(","), next(csv.reader([line])), strict=True))
    assert tuple(row) == tuple(FOCUS)
    assert row["ChargePeriodStart"] == "2026-12-31T00:00:00Z"
    assert row["ChargePeriodEnd"] == row["BillingPeriodEnd"] == "2027-01-01T00:00:00Z"
    assert row["BillingPeriodStart"] == "2026-12-01T00:00:00Z"
    costs = {row[name] for name in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")}
    assert costs == {"25"}
    assert (row["ConsumedQuantity"], row["ConsumedUnit"], row["x_UnusedQuantity"]) == ("10", "GPU-Hours", "5")
    assert json.loads(row["Tags"])["gpu-rightsizer.io/team"] == "vision"
