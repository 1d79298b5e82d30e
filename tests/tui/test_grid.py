"""Where ranks are on the grid."""

import pytest

from kair_engine.trace.model import Layout
from kair_tui.tui.widgets.grid_layout import (
    Arrangement,
    Group,
    Zoom,
    by_host,
    by_position,
    place_in_words,
    position_words,
)

HOSTS = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: None}


def test_ranks_are_grouped_by_host_in_their_order() -> None:
    assert by_host([5, 3, 1, 0, 4, 2], HOSTS) == (
        Group("a", (0, 1, 2)),
        Group("b", (3, 4)),
        Group("no host", (5,)),
    )


def test_ranks_stand_in_rows_of_stages_and_columns_of_data_parallel_ranks() -> None:
    layout = Layout(dp=2, pp=2, pipeline_stage={0: 0, 1: 1, 2: 0, 3: 1}, dp_rank={0: 1, 1: 1, 2: 0, 3: 0})
    assert by_position(range(4), layout) == (
        Group("pp 0", (2, 0), ("0", "1")),
        Group("pp 1", (3, 1), ("0", "1")),
    )
    assert by_position(range(4), Layout(dp=4)) == ()
    assert by_position(range(4), None) == ()


def test_tensor_parallel_ranks_stand_together_and_their_place_is_told() -> None:
    layout = Layout(dp=2, pp=1, tp=2, pipeline_stage=dict.fromkeys(range(4), 0), dp_rank={0: 0, 1: 0, 2: 1, 3: 1})
    groups = by_position(range(4), layout)
    assert position_words(groups) == "pp x dp x tp"
    assert [place_in_words(rank, layout) for rank in (0, 3)] == ["pp 0 dp 0 tp 0", "pp 0 dp 1 tp 1"]
    arrangement = Arrangement(groups, Zoom(1), 80, 10, aligned=True)
    assert [arrangement.label_width + arrangement.columns.start(column) for column in range(4)] == [6, 7, 9, 10]


def job(hosts: int, each: int) -> tuple[Group, ...]:
    return tuple(Group(f"h{host}", tuple(range(host * each, (host + 1) * each))) for host in range(hosts))


def drawn(arrangement: Arrangement) -> list[str]:
    """Each line with the first rank of each cell at its place."""
    lines = []
    for row in range(arrangement.rows.count):
        line = arrangement.label(row).ljust(arrangement.label_width)
        for column in arrangement.cells_of(row):
            start = arrangement.label_width + arrangement.columns.start(column)
            line = line.ljust(start) + str(arrangement.ranks_in(row, column)[0])
        lines.append(line)
    return lines


def test_each_host_has_a_line_where_there_is_room() -> None:
    assert drawn(Arrangement(job(2, 3), Zoom(2), 80, 10)) == ["h0  0 1 2", "h1  3 4 5"]


def test_hosts_stand_beside_each_other_where_there_are_too_many() -> None:
    assert drawn(Arrangement(job(4, 2), Zoom(2), 80, 2)) == ["h0  0 1  2 3", "h2  4 5  6 7"]


def test_a_host_that_is_too_wide_goes_on_in_the_next_line() -> None:
    assert drawn(Arrangement(job(1, 5), Zoom(2), 10, 10)) == ["h0  0 1 2", "    3 4"]


def test_rows_of_a_table_stay_under_each_other_however_long() -> None:
    arrangement = Arrangement(job(2, 5), Zoom(2), 10, 1, aligned=True)
    assert drawn(arrangement) == ["h0  0 1 2 3 4", "h1  5 6 7 8 9"]
    assert arrangement.width == 14


def test_a_cell_can_stand_for_several_ranks() -> None:
    arrangement = Arrangement(job(2, 5), Zoom(1, 2), 80, 10)
    assert drawn(arrangement) == ["h0  024", "h1  579"]
    place = arrangement.place_of(8)
    assert place is not None
    assert arrangement.ranks_in(*place) == (7, 8)


@pytest.mark.parametrize(("hosts", "each", "height"), [(1, 1, 3), (3, 4, 2), (5, 3, 9), (2048, 8, 22)])
@pytest.mark.parametrize("zoom", [Zoom(10), Zoom(2), Zoom(1, 4)])
def test_every_rank_is_found_where_it_is_drawn(hosts: int, each: int, height: int, zoom: Zoom) -> None:
    arrangement = Arrangement(job(hosts, each), zoom, 76, height)
    for rank in range(0, hosts * each, max(hosts * each // 50, 1)):
        place = arrangement.place_of(rank)
        assert place is not None
        assert rank in arrangement.ranks_in(*place)
        assert place[1] in arrangement.cells_of(place[0])
        assert arrangement.columns.at(arrangement.columns.start(place[1])) == place[1]
    assert arrangement.place_of(hosts * each) is None


def test_the_cursor_goes_on_in_the_next_line_and_stops_at_the_ends() -> None:
    arrangement = Arrangement(job(2, 2), Zoom(2), 80, 10)
    at = [place for rank in range(4) if (place := arrangement.place_of(rank)) is not None]
    assert [arrangement.beside(*place, 1, 0) for place in at] == [at[1], at[2], at[3], at[3]]
    assert [arrangement.beside(*place, -1, 0) for place in at] == [at[0], at[0], at[1], at[2]]
    assert [arrangement.beside(*place, 0, 1) for place in at] == [at[2], at[3], at[2], at[3]]
    assert [arrangement.beside(*place, 0, -9) for place in at] == [at[0], at[1], at[0], at[1]]
