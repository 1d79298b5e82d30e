"""The shard store: each sample of each epoch counts once, whoever dies, returns or comes too late."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kair_mitigate.audit import audit
from kair_mitigate.shards.shard import (
    CheckpointError,
    CommitPoint,
    NotOwnerError,
    OutOfPlaceError,
    Position,
    Shard,
    ShardError,
    StaleGenerationError,
    keyed_order,
)
from kair_mitigate.shards.store import ShardStore

MEMORY = Path(":memory:")
"""What SQLite keeps in memory, for which the store makes a file of that name all the same."""
GOLDEN = [5, 7, 4, 8, 0, 2, 3, 6, 9, 1]


@pytest.fixture(autouse=True, scope="module")
def _no_file_is_left_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("memory"))
        yield


def store_of(
    size: int, shard: int, *, epochs: int = 1, commit: CommitPoint = "checkpoint", tries: int = 3
) -> ShardStore:
    store = ShardStore(MEMORY, most_tries=tries)
    store.make(size, shard, seed=7, epochs=epochs, commit=commit)
    return store


def claimed(store: ShardStore, worker: str, generation: int = 1) -> Shard:
    shard = store.claim(worker, generation)
    assert isinstance(shard, Shard)
    return shard


def rest(store: ShardStore, worker: str = "rest") -> Counter[tuple[int, int]]:
    """What is left for one worker that takes everything: (epoch, position)."""
    generation = store.join(worker)
    seen: Counter[tuple[int, int]] = Counter()
    while isinstance(shard := store.claim(worker, generation), Shard):
        assert shard.end is not None
        for begin, end in shard.batches(3):
            if store.commit_point == "push":
                store.push(worker, generation, shard.id, (begin, end), lambda: None)
            seen.update((shard.epoch, position) for position in range(begin, end))
        store.done(worker, generation, shard.id)
    assert shard == "finished"
    return seen


def all_once(size: int, epochs: int = 1) -> Counter[tuple[int, int]]:
    return Counter((epoch, position) for epoch in range(epochs) for position in range(size))


def test_the_order_is_the_same_in_every_release() -> None:
    assert keyed_order(10, 7, "epoch/0") == GOLDEN
    shard = Shard(1, 0, 2, 100, 106, None, 103, seed=7)
    assert list(shard) == shard.indices(100, 106)[3:]
    assert sorted(shard.indices(100, 106)) == list(range(100, 106))


def test_epochs_have_orders_of_their_own_and_follow_one_another() -> None:
    store = store_of(40, 2, epochs=3)
    orders: dict[int, list[int]] = {}
    for _ in range(60):
        shard = claimed(store, "a")
        orders.setdefault(shard.epoch, []).append(shard.number)
        store.done("a", 1, shard.id)
    assert store.claim("a", 1) == "finished"
    assert list(orders) == [0, 1, 2]
    assert all(sorted(order) == list(range(20)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 3


def test_the_next_epoch_waits_for_the_last_shard_of_one() -> None:
    store = store_of(2, 1, epochs=2)
    first, second = claimed(store, "a"), claimed(store, "b")
    store.done("a", 1, first.id)
    assert store.claim("a", 1) == "wait"
    store.done("b", 1, second.id)
    assert claimed(store, "a").epoch == 1


def test_a_worker_has_one_shard_and_gets_the_same_when_it_asks_again() -> None:
    store = store_of(4, 2)
    assert claimed(store, "a") == claimed(store, "a")
    assert claimed(store, "b") != claimed(store, "a")


def test_what_was_done_since_the_checkpoint_returns_with_it() -> None:
    store = store_of(12, 4)
    first = claimed(store, "a")
    store.done("a", 1, first.id)
    second = claimed(store, "a")
    store.commit("10", {"a": Position(1, second.id, second.begin + 1)})
    store.done("a", 1, second.id)
    third = claimed(store, "a")
    store.done("a", 1, third.id)
    assert store.claim("a", 1) == "finished"
    store.restore("10")
    with pytest.raises(StaleGenerationError):
        store.claim("a", 1)
    assert rest(store) == Counter(
        [
            *((0, at) for at in range(second.begin + 1, second.begin + 4)),
            *((0, at) for at in range(third.begin, third.begin + 4)),
        ]
    )


def test_a_position_is_what_counts_and_not_what_was_done_since() -> None:
    """The commit arrives late: the worker has gone on by then."""
    store = store_of(12, 4)
    first = claimed(store, "a")
    store.done("a", 1, first.id)
    second = claimed(store, "a")
    store.commit("10", {"a": Position(1, first.id, first.begin + 3)})
    store.restore("10")
    left = rest(store)
    assert left[0, first.begin + 2] == 0
    assert left[0, first.begin + 3] == 1
    assert left[0, second.begin] == 1


def test_an_older_checkpoint_can_be_restored_and_later_ones_are_forgotten() -> None:
    store = store_of(4, 2, epochs=2)
    store.commit("0", {})
    for name in ("1", "2", "3"):
        store.done("a", 1, claimed(store, "a").id)
        store.commit(name, {"a": Position(1, None)})
    assert store.status().epoch == 1
    store.restore("1")
    assert list(store.checkpoints()) == ["0", "1"]
    with pytest.raises(CheckpointError, match="'1', '0'"):
        store.restore("2")
    assert sum(rest(store).values()) == 6
    store.restore(None)
    assert rest(store) == all_once(4, 2)


def test_what_a_forgotten_checkpoint_had_is_forgotten_too() -> None:
    store = store_of(8, 4)
    shard = claimed(store, "a")
    store.commit("1", {"a": Position(1, shard.id, shard.begin + 3)})
    store.restore(None)
    again = claimed(store, "a", store.join("a"))
    store.release("a")  # at its committed cursor: there is none
    assert claimed(store, "b").cursor == again.cursor == shard.begin
    store.commit("1", {})
    store.restore("1")
    assert rest(store) == all_once(8)


def test_an_epoch_whose_only_open_shard_is_poison_is_over_after_a_restore() -> None:
    store = store_of(4, 2, epochs=2, tries=1)
    store.done("a", 1, claimed(store, "a").id)
    store.commit("1", {"a": Position(1, None)})
    claimed(store, "a")
    store.release("a")
    assert store.status().epoch == 1
    store.restore("1")
    assert claimed(store, "a", 3).epoch == 1  # numbered by somebody else: nobody has joined since


def test_a_checkpoint_of_the_same_name_is_the_same_or_refused() -> None:
    store = store_of(4, 2)
    shard = claimed(store, "a")
    store.commit("latest", {"a": Position(1, shard.id, shard.begin + 1)})
    store.commit("latest", {"a": Position(1, shard.id, shard.begin + 1)})
    with pytest.raises(CheckpointError, match="its step"):
        store.commit("latest", {"a": Position(1, shard.id, shard.begin + 2)})


def test_a_dead_worker_returns_what_it_did_since_the_checkpoint() -> None:
    store = store_of(12, 4)
    committed = claimed(store, "a")
    store.done("a", 1, committed.id)
    store.commit("1", {"a": Position(1, None)})
    lost = claimed(store, "a")
    store.done("a", 1, lost.id)
    held = claimed(store, "a")
    store.progress("a", 1, held.id, held.begin + 2)
    store.release("a")
    with pytest.raises(StaleGenerationError):
        store.done("a", 1, held.id)
    with pytest.raises(StaleGenerationError):
        store.commit("2", {"a": Position(1, held.id, held.begin + 2)})
    assert rest(store) == all_once(12) - Counter((0, at) for at in range(committed.begin, committed.begin + 4))


def test_with_pushes_a_dead_worker_returns_only_what_was_not_applied() -> None:
    store = store_of(8, 4, commit="push")
    shard, applied = claimed(store, "a"), []
    assert store.push("a", 1, shard.id, (shard.begin, shard.begin + 3), lambda: applied.append(3))
    assert not store.push("a", 1, shard.id, (shard.begin, shard.begin + 3), lambda: applied.append(9))
    generation = store.join("a")
    with pytest.raises(StaleGenerationError):
        store.push("a", 1, shard.id, (shard.begin + 3, shard.begin + 4), lambda: applied.append(9))
    again = claimed(store, "a", generation)
    assert (again.id, again.cursor) == (shard.id, shard.begin + 3)
    assert applied == [3]


@pytest.mark.parametrize(("begin", "end"), [(1, 2), (0, 0), (0, 5), (-1, 1)])
def test_a_push_that_does_not_follow_is_refused(begin: int, end: int) -> None:
    store = store_of(4, 4, commit="push")
    shard = claimed(store, "a")
    with pytest.raises(OutOfPlaceError):
        store.push("a", 1, shard.id, (begin, end), lambda: pytest.fail("it was applied"))
    with pytest.raises(OutOfPlaceError):
        store.done("a", 1, shard.id)
    with pytest.raises(ShardError, match="not by a checkpoint"):
        store.progress("a", 1, shard.id, 1)


def test_a_gradient_that_cannot_be_applied_leaves_the_cursor() -> None:
    store = store_of(4, 4, commit="push")
    shard = claimed(store, "a")

    def broken() -> None:
        raise ArithmeticError("inf")

    with pytest.raises(ArithmeticError):
        store.push("a", 1, shard.id, (0, 2), broken)
    assert store.push("a", 1, shard.id, (0, 2), lambda: None)


def test_poison_goes_to_quarantine_loudly_and_stays_there(capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(6, 2, epochs=2, commit="push", tries=2)
    for generation in (1, 2):
        assert store.join("a") == generation
        poison = claimed(store, "a", generation)
        if generation == 1:
            assert store.push("a", 1, poison.id, (poison.begin, poison.begin + 1), lambda: None)
    assert store.join("a") == 3
    assert claimed(store, "a", 3).id != poison.id
    assert f"kair: warning: shard {poison.number} is left out" in capsys.readouterr().err
    store.release("a")
    left = rest(store)
    assert left == all_once(6, 2) - Counter(
        [(0, poison.begin), *((e, poison.begin + at) for e in (0, 1) for at in (0, 1))]
    )
    told = [(one.epoch, one.cursor, one.end) for one in store.status().quarantined]
    assert told == [(0, poison.begin + 1, poison.begin + 2), (1, poison.begin, poison.begin + 2)]
    store.restore(None)
    assert [one.epoch for one in store.status().quarantined] == [0]


def test_deaths_that_get_further_each_time_are_no_poison() -> None:
    store = store_of(10, 10, commit="push", tries=2)
    for at in range(10):
        generation = store.join("a")
        shard = claimed(store, "a", generation)
        store.push("a", generation, shard.id, (at, at + 1), lambda: None)
    assert not store.status().quarantined


def test_restarts_of_the_whole_job_are_no_tries() -> None:
    store = store_of(2, 2, tries=2)
    for _ in range(5):
        claimed(store, "a", store.join("a"))
        store.restore(None)
    assert rest(store) == all_once(2)


def test_who_reports_a_failure_gives_up_what_no_checkpoint_has() -> None:
    store = store_of(6, 2, tries=1)
    store.done("a", 1, claimed(store, "a").id)
    shard = claimed(store, "a")
    store.fail("a", 1, shard.id, "cannot be read")
    with pytest.raises(StaleGenerationError):
        store.claim("a", 1)
    assert store.status().quarantined[0].reason == "cannot be read"
    assert sum(rest(store).values()) == 4


def test_who_leaves_well_is_committed_later() -> None:
    store = store_of(4, 2)
    store.done("a", 1, claimed(store, "a").id)
    claimed(store, "b")
    store.leave("a", 1)
    with pytest.raises(NotOwnerError):
        store.leave("b", 1)
    store.commit("1", {"a": Position(1, None)})
    store.restore("1")
    assert sum(rest(store).values()) == 2


def test_a_stream_grows_and_its_files_say_how_long_they_are() -> None:
    store = ShardStore(MEMORY)
    store.make_files(["x", "y"], seed=1, epochs=2, growing=True)
    for records in (3, 5):
        store.done("a", 1, claimed(store, "a").id, records)
    assert store.claim("a", 1) == "wait"
    assert store.add(["y", "z"]) == 1
    shard = claimed(store, "a")
    assert (shard.file, shard.end) == ("z", None)
    store.commit("1", {"a": Position(1, shard.id, 17)})
    store.release("a")
    again = claimed(store, "b")
    assert (again.id, again.cursor) == (shard.id, 17)
    with pytest.raises(OutOfPlaceError):
        store.done("b", 1, again.id, 16)
    store.done("b", 1, again.id, 20)
    store.end_stream()
    with pytest.raises(ShardError, match="nothing can be added"):
        store.add(["w"])
    second = [claimed(store, f"w{at}") for at in range(3)]
    assert {(shard.epoch, shard.file, shard.end) for shard in second} == {(1, file, None) for file in "xyz"}


def test_a_stream_may_end_before_it_had_anything() -> None:
    store = ShardStore(MEMORY)
    store.make_files([], seed=1, epochs=2, growing=True)
    assert store.claim("a", 1) == "wait"
    store.end_stream()
    assert store.claim("a", 1) == "finished"


def test_a_store_on_the_disk_goes_on_where_it_was_and_knows_its_dataset(tmp_path: Path) -> None:
    path = tmp_path / "shards.sqlite"
    store = ShardStore(path)
    store.make(6, 2, seed=7)
    first = claimed(store, "a")
    store.close()
    store = ShardStore(path)
    store.make(6, 2, seed=7)
    assert claimed(store, "a") == first
    with pytest.raises(ShardError, match="give it a new file"):
        store.make(6, 2, seed=8)
    store.close()


actions = st.tuples(
    st.sampled_from(("claim", "train", "train", "done", "die", "come back", "commit", "restore", "zombie")),
    st.integers(0, 2),
    st.integers(0, 9),
)


class Life:
    """Workers that train what they claim, and what of it each believes to be in its state."""

    def __init__(self, store: ShardStore) -> None:
        self.store = store
        self.generations = dict.fromkeys("abc", 0)
        self.held: dict[str, Shard] = {}
        self.cursors: dict[str, int] = {}
        self.counted: Counter[tuple[int, int]] = Counter()
        """What the last checkpoint's model, or the server's, was trained with."""
        self.own: dict[str, list[tuple[int, int]]] = {worker: [] for worker in "abc"}
        """What is only in a worker's state."""
        self.kept: dict[str | None, Counter[tuple[int, int]]] = {None: Counter()}
        self.zombies: list[tuple[str, int, Shard, int]] = []
        self.unnoticed: set[str] = set()
        """Dead, and nobody knows yet."""
        self.commits = 0

    def forget(self, worker: str) -> None:
        if worker in self.held:
            self.zombies.append((worker, self.generations[worker], self.held.pop(worker), self.cursors[worker]))
        self.own[worker].clear()
        self.generations[worker] = 0

    def act(self, what: str, worker: str, number: int) -> None:
        store, generation = self.store, self.generations[worker]
        match what:
            case "claim" if generation and worker not in self.held:
                if isinstance(shard := store.claim(worker, generation), Shard):
                    self.held[worker], self.cursors[worker] = shard, shard.cursor
            case "train" if worker in self.held:
                self.train(worker, number)
            case "done" if worker in self.held and self.cursors[worker] == self.held[worker].end:
                store.done(worker, generation, self.held.pop(worker).id)
            case "die":
                self.forget(worker)
                self.unnoticed.add(worker)
                if number % 2:
                    store.release(worker)
                    self.unnoticed.discard(worker)
            case "come back":
                self.forget(worker)
                self.generations[worker] = store.join(worker)
                self.unnoticed.discard(worker)
            case "commit":
                self.commit(number)
            case "restore":
                there = sorted([None, *store.checkpoints()], key=str)
                name = there[number % len(there)]
                store.restore(name)
                for one in "abc":
                    self.forget(one)
                self.unnoticed.clear()
                self.counted = self.kept[name].copy()
                holding = store.checkpoints()
                self.kept = {kept: count for kept, count in self.kept.items() if kept is None or kept in holding}
            case "zombie" if late := [zombie for zombie in self.zombies if zombie[0] not in self.unnoticed]:
                self.haunt(*late[number % len(late)])

    def train(self, worker: str, number: int) -> None:
        shard, begin = self.held[worker], self.cursors[worker]
        end = min(begin + 1 + number % 3, shard.end or 0)
        if end == begin:
            return
        trained = [(shard.epoch, position) for position in range(begin, end)]
        if self.store.commit_point == "push":
            self.store.push(
                worker, self.generations[worker], shard.id, (begin, end), lambda: self.counted.update(trained)
            )
        else:
            self.own[worker] += trained
            self.store.progress(worker, self.generations[worker], shard.id, end)
        self.cursors[worker] = end

    def commit(self, number: int) -> None:
        self.commits += 1
        name = str(self.commits)
        if self.store.commit_point == "push":
            self.store.commit_all(name)
        else:
            named = [worker for worker in "abc" if self.generations[worker] and (number >> "abc".index(worker)) & 1]
            self.store.commit(name, {worker: self.position(worker) for worker in named})
            for worker in named:
                self.counted.update(self.own[worker])
                self.own[worker].clear()
        self.kept[name] = self.counted.copy()

    def position(self, worker: str) -> Position:
        if worker in self.held:
            return Position(self.generations[worker], self.held[worker].id, self.cursors[worker])
        return Position(self.generations[worker], None)

    def haunt(self, worker: str, generation: int, shard: Shard, cursor: int) -> None:
        """A process that was given up, or died and was replaced, sends what it still has to say."""
        before = list(self.store._connection.iterdump())
        for late in (
            lambda: self.store.done(worker, generation, shard.id),
            lambda: self.store.progress(worker, generation, shard.id, cursor + 1),
            lambda: self.store.push(worker, generation, shard.id, (cursor, cursor + 1), lambda: None),
            lambda: self.store.commit("late", {worker: Position(generation, shard.id, cursor)}),
            lambda: self.store.fail(worker, generation, shard.id, "late"),
            lambda: self.store.leave(worker, generation),
            lambda: self.store.claim(worker, generation),
        ):
            with pytest.raises(ShardError):
                late()
        assert list(self.store._connection.iterdump()) == before


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["checkpoint", "push"])
@settings(max_examples=150, deadline=None)
@given(size=st.integers(1, 9), shard=st.integers(1, 4), epochs=st.integers(1, 3), story=st.lists(actions, max_size=60))
@example(size=4, shard=2, epochs=2, story=[("come back", 0, 0), ("claim", 0, 0), ("train", 0, 5), ("commit", 0, 1)])
def test_whatever_happens_each_sample_of_each_epoch_counts_once(
    commit: CommitPoint, size: int, shard: int, epochs: int, story: list[tuple[str, int, int]]
) -> None:
    with TemporaryDirectory() as folder:
        rows = Path(folder, "rows")
        store = ShardStore(MEMORY, most_tries=1000, kept_checkpoints=2, rows=rows)
        store.make(size, shard, seed=7, epochs=epochs, commit=commit)
        life = Life(store)
        for what, worker, number in story:
            life.act(what, "abc"[worker], number)
        for one in "abc":
            store.release(one)
        assert life.counted + rest(store) == all_once(size, epochs)
        if commit == "checkpoint":
            store.commit("end", {"rest": Position(1, None)})
        assert len(store.checkpoints()) <= 2
        store.close()
        found = audit([rows], size, epochs)
        assert (found.exactly_once, found.damaged) == (True, 0)


@pytest.mark.parametrize("commit", ["checkpoint", "push"])
def test_a_store_that_writes_rows_does_not_grow_with_epochs_and_checkpoints(
    tmp_path: Path, commit: CommitPoint
) -> None:
    store = ShardStore(MEMORY, kept_checkpoints=2, rows=tmp_path / "rows")
    store.make(6, 2, seed=7, epochs=40, commit=commit)
    generation, most = store.join("a"), 0
    for number in range(90):
        shard = claimed(store, "a", generation)
        if commit == "push":
            store.push("a", generation, shard.id, (shard.begin, shard.end or 0), lambda: None)
        store.done("a", generation, shard.id)
        if commit == "checkpoint":
            store.commit(str(number), {"a": Position(generation, None)})
        most = max(most, len(list(store._connection.iterdump())))
    assert most < 60  # 40 epochs have 120 shards
    store.restore(None)
    generation = store.join("a")
    assert [claimed(store, "a", generation).epoch, list(store.checkpoints())] == [0, []]
    store.release("a")
    assert rest(store) == all_once(6, 40)
    store.close()


def test_rows_of_a_transaction_that_did_not_come_to_its_end_are_cut_off(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    store = ShardStore(tmp_path / "shards.sqlite", rows=rows)
    store.make(6, 6, seed=7, commit="push")
    generation = store.join("a")
    shard = claimed(store, "a", generation)
    store.push("a", generation, shard.id, (0, 2), lambda: None)
    with pytest.raises(ZeroDivisionError):
        store.push("a", generation, shard.id, (2, 4), lambda: 1 // 0)
    store.close()
    assert len(rows.read_text().splitlines()) == 2
    ShardStore(tmp_path / "shards.sqlite", rows=rows).close()
    assert [json.loads(line)["end"] for line in rows.read_text().splitlines()] == [2]
