"""A price of a GPU hour that names its currency: it stands wherever costs do, and a plain number stays one."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.answers import answered_once
from support.cli_samples import kair, store_variables
from support.places import SAMPLES

import kair as api
from kair_engine.errors import UsageError
from kair_engine.results.money import GpuCost, currency_of

SLOW = str(SAMPLES / "slow_operator")
COST = "56.37"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    store_variables(monkeypatch, tmp_path)
    with answered_once():
        yield


@pytest.mark.parametrize(
    ("typed", "amount", "currency"),
    [
        ("2.5", 2.5, None),
        ("2.5USD", 2.5, "USD"),
        ("eur 2.5", 2.5, "EUR"),
        ("2.5€", 2.5, "EUR"),
        ("£.5", 0.5, "GBP"),
        ("1e2 CHF", 100.0, "CHF"),
        (3, 3.0, None),
    ],
)
def test_a_price_as_it_is_typed(typed: str | int, amount: float, currency: str | None) -> None:
    price = GpuCost.of(typed)
    assert (float(price), price.currency) == (amount, currency)
    again = pickle.loads(pickle.dumps(price))  # as workers of a cluster are given it
    assert (again, again.currency) == (price, currency) and GpuCost.of(str(price)) == price
    assert (price == amount) is (currency is None)
    assert currency_of(amount) is None


@pytest.mark.parametrize("typed", ["", "USD", "2.5 dollars", "USD2.5EUR", "2,5", "-1USD", "$2.5"])
def test_what_is_no_price(typed: str) -> None:
    with pytest.raises(UsageError):
        GpuCost.of(typed)
    outcome = kair("triage", SLOW, f"--gpu-cost={typed}")
    assert outcome.status == 2
    assert outcome.err.startswith(f"kair: error: --gpu-cost must be a price such as 2.5 or 2.5USD, got {typed!r}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("triage", SLOW),
        ("triage", SLOW, "-o", "md"),
        ("triage", SLOW, "--oneline"),
        ("ticket", SLOW),
        ("whatif", SLOW, "--fix", "rank=2+kind=compute"),
        ("jobs",),
        ("jobs", "-o", "wide"),
        ("fleet",),
        ("fleet", "-o", "md"),
    ],
)
def test_the_currency_stands_with_the_amount(words: tuple[str, ...]) -> None:
    if words[0] in ("jobs", "fleet"):
        assert kair("import", SLOW, "--job", "job1").status == 0
        assert kair("fleet").status == 0  # which prices it
    named, plain = (kair(*words, "--gpu-cost", price) for price in ("2.5CHF", "2.5"))
    assert named.status == plain.status == 0
    assert " CHF" in named.out
    assert "CHF" not in plain.out


@pytest.mark.slow
def test_json_and_csv_have_it_beside_the_amount() -> None:
    def finding(*options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(kair("triage", SLOW, "--json", *options).out)["data"]["findings"][0]
        return found

    named, plain, none = finding("--gpu-cost", "2.5USD"), finding("--gpu-cost", "2.5"), finding()
    assert (named["cost_per_day"], named["currency"]) == (plain["cost_per_day"], "USD")
    assert (plain["currency"], none["cost_per_day"], none["currency"]) == (None, None, None)
    head, _, row, *_ = kair("triage", SLOW, "-o", "csv", "--gpu-cost", "2.5USD").out.splitlines()
    assert head.split(",").index("currency") == head.split(",").index("cost_per_day") + 1 and ",USD," in row


@pytest.mark.slow
def test_the_report_the_commands_in_it_and_python_say_the_same(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    assert kair("triage", SLOW, "--gpu-cost", "2.5USD", "--report", str(page)).status == 0
    text = page.read_text(encoding="utf-8")
    assert f"{COST} USD" in text and "--gpu-cost 2.5USD" in text
    found = api.open(SLOW, progress=False).triage(gpu_cost="2.5USD")
    assert found.findings[0].currency == "USD" and f"{COST} USD a day" in found.text()


@pytest.mark.slow
def test_a_kept_verdict_is_not_taken_for_another_currency() -> None:
    assert kair("import", SLOW, "--job", "job1").status == 0
    for currency in ("USD", "EUR", "USD"):
        assert f"{COST} {currency} a day" in kair("triage", "job1", "--gpu-cost", f"2.5{currency}").out
