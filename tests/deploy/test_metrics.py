"""What Prometheus is told; and that rules and dashboard ask for nothing else."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.live_status import STATUS

from kair_capture.coordinator.status import lines_of
from kair_capture.coordinator.webhook import Webhook
from kair_engine.results.watch import Alert, WatchedVerdict
from kair_engine.results.whatif import PricedRanks
from kair_engine.results.windows import PricedWindow

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "kair.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "kair.json"
PAGE = (ROOT / "docs" / "capture.md").read_text()
SILENT = Alert("2026-01-01T10:00:00+00:00", "silent_host", 130, (0,), ("node-1",), None, None)
FULL = replace(
    STATUS,
    job='a "job"\\',
    updated_at="2026-01-01T00:00:00+00:00",
    state="stalled",
    ranks=tuple(replace(one, sample_time_us=1e4) for one in STATUS.ranks),
    hosts=(replace(STATUS.hosts[0], spooled=3, discarded=2, unsent_rows=40),),
    alerts=(*STATUS.alerts, SILENT, replace(SILENT, over=True)),
    sampling=replace(STATUS.sampling, owed_us=5e5),
    refused_datagrams={"signature": 7, "size": 1},
    priced_windows=(
        PricedWindow(
            1, 8, "2026-01-01T10:00:00.000+00:00", 1.2, 0.9, (2,), {2: 1.19}, ((1.19,),), False, 0.0, "straggler"
        ),
    ),
    triage=WatchedVerdict(130, "straggler", "straggler: rank 2", (PricedRanks((2,), 11_000.0, 104, None),)),
)


@pytest.fixture(scope="module")
def samples() -> Iterator[dict[str, list[tuple[dict[str, str], float]]]]:
    """Name → labels and value of each series, as Prometheus' own client reads them."""
    webhook = Webhook("http://127.0.0.1:9/", "job")
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families("".join(f"{line}\n" for line in lines_of(FULL, webhook))):
        assert family.documentation
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    yield found
    webhook.close()


def test_all_that_is_known_of_the_job_is_told(samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    def by(name: str, label: str) -> dict[str, float]:
        return {labels[label]: value for labels, value in samples[name]}

    assert {labels["job"] for series in samples.values() for labels, _ in series} == {FULL.job}
    states = by("kair_job_state", "state")
    assert {"waiting", "training", "over"} <= set(states)
    assert [state for state, is_so in states.items() if is_so] == ["stalled"]
    alerts = by("kair_open_alerts", "kind")
    assert {kind for kind, count in alerts.items() if count} == {"slow_rank"}
    assert alerts["silent_host"] == 0
    assert by("kair_refused_datagrams_total", "reason") == {"signature": 7, "size": 1}
    assert by("kair_self_excess_ratio", "rank") == {"0": 0, "1": 0, "2": 0.2, "3": 0}
    assert by("kair_self_excess_z", "rank")["2"] == 20
    assert by("kair_host_heard_seconds", "host") == {"node-1": 0.3}
    assert by("kair_rank_slowdown", "rank") == {"2": 1.19}
    assert (by("kair_cost_seconds", "rank"), by("kair_slow_since_step", "rank")) == ({"2": 0.011}, {"2": 104})
    one = {name: series[0][1] for name, series in samples.items()}
    assert (one["kair_spooled_fragments"], one["kair_discarded_total"], one["kair_unsent_rows"]) == (3, 2, 40)
    assert (one["kair_slowdown"], one["kair_m_w"], one["kair_slowdown_is_high"]) == (1.2, 0.9, 1)
    assert (one["kair_world_size"], one["kair_sampling_windows_total"], one["kair_sampling_owed_seconds"]) == (
        4,
        1,
        0.5,
    )
    assert one["kair_status_timestamp_seconds"] == 1767225600


def test_the_page_lists_every_metric(samples: dict[str, list[tuple[dict[str, str], float]]]) -> None:
    assert set(re.findall(r"\bkair_[a-z_]+\b", PAGE)) - {"kair_capture"} == set(samples)


@pytest.mark.slow
def test_the_page_says_how_many_series_ten_thousand_ranks_are() -> None:
    status = replace(FULL, ranks=FULL.ranks[:1] * 10_000, hosts=FULL.hosts * 1_250)
    series = sum(not line.startswith("#") for line in lines_of(status))
    told = re.search(r"With 10,000 ranks on 1,250 hosts .*?([\d,]+) series", PAGE, re.DOTALL)
    assert told is not None
    assert int(told[1].replace(",", "")) == round(series, -3)


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    board = json.loads(DASHBOARD.read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    yield from (one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query")


def test_rules_and_dashboard_ask_only_for_what_is_told(
    samples: dict[str, list[tuple[dict[str, str], float]]],
) -> None:
    asked: set[str] = set()
    for expression in expressions():
        names = re.findall(r"\bkair_\w+", expression)
        asked.update(names)
        known = {label for name in names for labels, _ in samples[name] for label in labels} | {"instance"}
        for name, selector in re.findall(r"\b(kair_\w+)\{(.*?)\}", expression):
            of = samples[name][0][0]
            for label, operator, value in re.findall(r'(\w+)(=~?)"(.*?)"', selector):
                assert label in of, expression
                assert operator == "=~" or value in {labels[label] for labels, _ in samples[name]}
        for labels in re.findall(r"\b(?:by|on) \((.*?)\)", expression):
            assert set(re.findall(r"\w+", labels)) <= known, expression
    assert set(samples) - asked == {"kair_webhook_sent_total"}


def test_alerts_name_only_labels_that_their_expression_has(
    samples: dict[str, list[tuple[dict[str, str], float]]],
) -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            names = re.findall(r"\bkair_\w+", rule["expr"])
            # Sums keep what they are by.
            kept = re.findall(r"\bsum by \((\w+)\)", rule["expr"])
            has = set(kept) or {label for name in names for label in samples[name][0][0]} | {"instance"}
            assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= has, rule["alert"]


def test_no_panel_of_the_dashboard_lies_on_another() -> None:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", str(RULES.with_name("prometheus.yml"))),
        ("test", "rules", str(Path(__file__).with_name("kair.rules_test.yml"))),
    ],
)
def test_prometheus_own_tool_agrees(arguments: tuple[str, ...]) -> None:
    told = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
