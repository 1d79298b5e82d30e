"""`kair query`: SQL over the job's tables, which reads them alone and opens no file."""

import io
import json
from pathlib import Path

import polars as pl
import pytest
from support.cli_samples import HOSTILE, assert_valid, kair, store_variables
from support.kineto_builder import trace, training_steps, write
from support.places import SAMPLES

from kair.app import querying
from kair.app.querying import MOST_ROWS, require_read_only
from kair.app.tables import TABLES
from kair_engine.errors import UsageError

JOB = str(SAMPLES / "slow_operator")
BY_RANK = "SELECT rank, count(*) AS n FROM operations GROUP BY rank"
ATTACKS = (
    "SELECT * FROM read_parquet('{}')",
    "SELECT * FROM ReAd_PaRqUeT('{}')",
    "SELECT * FROM read_csv('{}')",
    "SELECT * FROM \"read_parquet\"('{}')",
    "SELECT * FROM `read_parquet`('{}')",
    "SELECT * FROM read_parquet/**/('{}')",
    "SELECT * FROM read_parquet--\n('{}')",
    "SELECT '''', * FROM read_parquet('{}')",
    "SELECT $$'$$, * FROM read_parquet('{}') --'",
    "WITH x AS (SELECT * FROM read_parquet('{}')) SELECT * FROM x",
    "EXPLAIN SELECT * FROM steps WHERE rank IN (SELECT rank FROM read_parquet('{}'))",
)


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store_variables(monkeypatch, tmp_path)


def _rows(sql: str, *options: str) -> list[dict[str, object]]:
    outcome = kair("query", JOB, sql, "--json", *options)
    assert outcome.status == 0, outcome.err
    document = json.loads(outcome.out)
    assert_valid(document, "query")
    rows: list[dict[str, object]] = document["data"]["rows"]
    return rows


def test_rows_are_shown_as_a_table() -> None:
    outcome = kair("query", JOB, BY_RANK)
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "4 rows of 2 columns"
    assert [line.split() for line in lines[4:]] == [[str(rank), "4488"] for rank in range(4)]


@pytest.mark.slow
def test_each_format_has_all_rows(tmp_path: Path) -> None:
    sql = "SELECT step, rank, name, duration_us FROM operations"
    whole = _rows(sql)
    assert len(whole) > MOST_ROWS
    csv = pl.read_csv(io.StringIO(kair("query", JOB, sql, "-o", "csv").out))
    lines = kair("query", JOB, sql, "-o", "ndjson").out.splitlines()
    assert len(csv) == len(whole) == len(lines) - 2
    assert csv.rows() == [tuple(row.values()) for row in whole]
    assert json.loads(lines[1]) == {"record": "row", **whole[0]}
    for ending, read in (("parquet", pl.read_parquet), ("csv", pl.read_csv), ("arrow", pl.read_ipc)):
        file = tmp_path / f"rows.{ending}"
        outcome = kair("query", JOB, sql, "--out", str(file))
        assert outcome.status == 0
        assert outcome.out.startswith("17,952 rows of 4 columns\n")
        assert read(file).rows() == csv.rows()


def test_parquet_is_for_pipes_and_files() -> None:
    outcome = kair("query", JOB, BY_RANK, "-o", "parquet", terminal=True)
    assert outcome.status == 2
    assert "--out FILE.parquet" in outcome.err


def test_a_terminal_has_what_fits_and_is_told_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = kair("query", JOB, "SELECT * FROM operations", "--no-color", terminal=True).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "… and 17,852 more rows: -o csv, -o parquet and --out have all" in lines
    assert any(line.startswith("left out for lack of room: duration_us, lane") for line in lines)
    assert len(lines) < 115


def test_the_job_can_be_the_one_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAIR_JOB", JOB)
    assert json.loads(kair("query", BY_RANK, "--json").out)["data"]["total_rows"] == 4
    assert kair("query", "-o", "csv", "--step", "4", BY_RANK).out.splitlines()[1:] == [
        f"{rank},374" for rank in range(4)
    ]
    files = sorted(map(str, Path(JOB).glob("*.gz")))
    assert kair("query", *files, BY_RANK, "-o", "csv").out == kair("query", JOB, BY_RANK, "-o", "csv").out


@pytest.mark.parametrize("job", [(), (JOB,)])
def test_tables_are_described_with_units_with_and_without_a_job(job: tuple[str, ...]) -> None:
    document = json.loads(kair("query", *job, "--tables", "--json").out)
    assert_valid(document, "query")
    assert (document["job"] is None) is not bool(job)
    rows = document["data"]["rows"]
    assert [(row["table"], row["column"], row["unit"]) for row in rows] == [
        (table.name, column.name, column.unit or None) for table in TABLES.values() for column in table.columns
    ]
    text = kair("query", *job, "--tables").out
    assert all(f"\n{name}\n" in text for name in TABLES)


@pytest.mark.slow
def test_triage_runs_for_its_own_table_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _rows("SELECT f.rank, r.host FROM findings f JOIN ranks r ON f.rank = r.rank") == [
        {"rank": 2, "host": "node0"}
    ]

    def refused(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("kair.app.investigate.triage", refused)
    assert len(_rows("SELECT * FROM account a JOIN collectives c ON a.rank = c.rank AND a.step = c.step LIMIT 3")) == 3
    assert [row["name"] for row in _rows("SHOW TABLES")] == sorted(TABLES)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*) n FROM operations WHERE name LIKE 'aten::as_str%'", [{"n": 1920}]),
        (
            "WITH x AS (SELECT rank, count(*) n FROM steps GROUP BY rank) SELECT * FROM x WHERE rank < 1",
            [{"rank": 0, "n": 12}],
        ),
        (
            "SELECT duration_us / 0 AS x, INTERVAL '1 second' AS us, DATE '2026-01-02' AS d FROM steps LIMIT 1",
            [{"x": None, "us": 1e6, "d": "2026-01-02"}],
        ),
        ("SELECT array_agg(rank) AS r FROM ranks", [{"r": "0; 1; 2; 3"}]),
        ('SELECT rank AS "*", 2 AS b FROM ranks LIMIT 1', [{"*": 0, "b": 2}]),
        ("(SELECT max(rank) m FROM ranks)", [{"m": 3}]),
        ("SELECT rank FROM ranks WHERE rank > 9", []),
    ],
)
def test_what_sql_can_do(sql: str, rows: list[dict[str, object]]) -> None:
    assert _rows(sql) == rows


def test_a_plan_is_explained_line_by_line() -> None:
    assert all("\n" not in str(row["Logical Plan"]) for row in _rows("EXPLAIN SELECT rank FROM steps"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_query_opens_a_file(attack: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.parquet"
    pl.DataFrame({"rank": [7]}).write_parquet(file)
    outcome = kair("query", JOB, attack.format(file))
    assert (outcome.status, outcome.out) == (2, "")
    assert "a query reads the job's tables and no files" in outcome.err


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE steps",
        "DELETE FROM steps",
        "CREATE TABLE x AS SELECT 1",
        "TRUNCATE TABLE steps",
        "INSERT INTO steps VALUES (1)",
        "COPY steps TO '/tmp/x'",
        "/* SELECT */ DROP TABLE steps",
        "",
        ";",
    ],
)
def test_what_changes_something_is_refused_before_it_is_parsed(sql: str) -> None:
    with pytest.raises(UsageError, match="begins with SELECT, WITH, EXPLAIN or SHOW"):
        require_read_only(sql)


@pytest.mark.parametrize(
    ("sql", "error", "hint"),
    [
        ("SELECT rnk FROM steps", "no column 'rnk'", "did you mean rank?"),
        ("SELECT steps.xyzzy FROM steps", "no column 'xyzzy'", "columns: step, rank, begin_ns"),
        ("SELECT * FROM operation", "no table 'operation'", "did you mean operations?"),
        ("SELECT * FROM '/etc/passwd'", "no table '/etc/passwd'", "tables: operations, steps"),
        ("SELECT FROM", "syntax error: Expected", None),
        ("SELECT nonsense(rank) FROM steps", "unsupported function 'nonsense'", None),
        ("SELECT rank, rank FROM steps", "'rank'", "AS NAME"),
        ("SELECT 1; DROP TABLE steps", "one (and only one) statement can be parsed at a time", None),
        ("WITH x AS (SELECT 1) DELETE FROM steps", "DELETE", None),
        ("SELECT " + "(" * 5000, "recursion limit exceeded", None),
        ("SELECT " + "1+" * 6000 + "1", "the query has 12,008 characters", None),
        ("SELECT CAST(name AS INT) FROM operations", "conversion from `str` to `i32` failed", None),
    ],
)
def test_a_wrong_query_is_one_line_with_what_was_meant(sql: str, error: str, hint: str | None) -> None:
    outcome = kair("query", JOB, sql)
    assert (outcome.status, outcome.out) == (2, "")
    line, *rest = outcome.err.splitlines()
    assert line.startswith("kair: error: ") and error in line
    assert [hint in one for one in rest] == ([] if hint is None else [True])


def test_too_many_rows_for_a_document_are_refused_and_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(querying, "MOST_IN_DOCUMENT", 15_000)
    outcome = kair("query", JOB, "SELECT rank FROM operations", "--json")
    assert (outcome.status, outcome.out) == (3, "")
    assert "17,952 rows" in outcome.err and "--out FILE.parquet" in outcome.err


def test_names_of_a_trace_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    events = [{**one, "name": f"={HOSTILE}"} if one["name"] == "aten::op0" else one for one in training_steps()]
    job = str(write(tmp_path / "rank0.json", trace(events)))
    sql = "SELECT DISTINCT name FROM operations WHERE name LIKE '%owned%'"
    for output in ("table", "wide", "csv", "json", "ndjson", "md"):
        outcome = kair("query", job, sql, "-o", output)
        assert outcome.status == 0, outcome.err
        assert "owned" in outcome.out
        assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(outcome.out)
    assert kair("query", job, sql, "-o", "csv").out.splitlines()[1].strip('"').startswith("'=")
    outcome = kair("query", job, f'SELECT nothing AS "{HOSTILE}" FROM steps')
    assert outcome.status == 2
    assert "\x1b" not in outcome.err


def test_a_shell_asks_the_same() -> None:
    outcome = kair("shell", JOB, "-c", f'query "{BY_RANK}" -o csv; query "SELECT 1 AS one" -o parquet')
    assert outcome.out.startswith("rank,n\n0,4488\n")
    assert "Parquet is no text" in outcome.err
