from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kair_capture import wire as messages
from kair_capture.wire import (
    MOST_BODY,
    MOST_BYTES,
    Datagram,
    KeyFileError,
    Kind,
    RateLimit,
    RefusedError,
    Replays,
    ReplayWindow,
    make_key,
    read_key,
    sealed,
    unsealed,
)

KEY = b"k" * 32
FEW = settings(max_examples=60, deadline=None)
WORD = st.integers(0, 2**64 - 1)
COUNT = st.integers(0, 2**32 - 1)
RANKS = st.lists(COUNT, max_size=messages.MOST_RANKS).map(tuple)
PARTNERS = st.lists(COUNT, max_size=messages.MOST_PARTNERS).map(tuple)
CALLS = st.integers(0, messages.MOST_CALLS)
GROUPS = st.lists(st.tuples(COUNT, CALLS), max_size=messages.MOST_PARTNERS).map(tuple)

BODIES = st.one_of(
    st.builds(
        messages.Beat,
        offset_ns=st.integers(-(2**63), 2**63 - 1),
        drift=st.floats(-1, 1),
        bound_ns=st.none() | st.integers(0, 2**63),
        ranks=COUNT,
        drops=COUNT,
        delivered=COUNT,
        spooled=COUNT,
        discarded=COUNT,
        generation=COUNT,
        unsent_rows=COUNT,
    ),
    st.builds(
        messages.BeatReply,
        WORD,
        WORD,
        COUNT,
        COUNT,
        COUNT,
        st.integers(0, 10_000),
        RANKS,
        COUNT,
        COUNT,
        COUNT,
        st.integers(0, 255),
        WORD,
    ),
    st.builds(messages.Host, st.text("abc-.é", min_size=1, max_size=40), COUNT, RANKS),
    st.builds(messages.Rows, WORD, st.integers(1, messages.MOST_ROWS).map(lambda n: bytes(n * messages.ROW_BYTES))),
    st.builds(messages.Communication, COUNT, COUNT, PARTNERS, PARTNERS, GROUPS),
    st.builds(messages.Capture, COUNT, RANKS, st.integers(0, 255)),
    st.builds(
        messages.Values,
        st.dictionaries(st.text("abc-é", max_size=20), st.text("=ab 1%é", max_size=20), max_size=8),
        st.text("abc é", max_size=80),
    ),
    st.builds(messages.CaptureReply, COUNT, COUNT, st.text("abc é", max_size=80)),
)
READERS = messages.Body.__subclasses__()


@FEW
@given(BODIES, st.sampled_from(Kind), WORD, WORD, WORD)
def test_what_is_sent_is_what_is_read(body: messages.Body, kind: Kind, epoch: int, sender: int, sequence: int) -> None:
    packed = body.packed()
    assert len(packed) <= MOST_BODY
    sent = Datagram(kind, epoch, sender, sequence, packed)
    read = unsealed(KEY, sealed(KEY, sent))
    assert read == sent
    assert type(body).read(read.body) == body


@FEW
@given(st.binary(max_size=MOST_BYTES + 10))
def test_any_bytes_are_refused_and_never_an_error(data: bytes) -> None:
    with pytest.raises(RefusedError):
        unsealed(KEY, data)


@FEW
@given(st.binary(max_size=300), st.sampled_from(READERS))
def test_any_signed_body_is_read_or_refused(body: bytes, reader: type[messages.Body]) -> None:
    try:
        reader.read(body)
    except messages.BadMessageError:
        return


@FEW
@given(st.data(), BODIES)
def test_one_changed_bit_is_refused(data: st.DataObject, body: messages.Body) -> None:
    packed = bytearray(sealed(KEY, Datagram(Kind.BEAT, 1, 2, 3, body.packed())))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RefusedError):
        unsealed(KEY, bytes(packed))


def test_another_jobs_key_is_another_key(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "job.key"
    assert make_key(path)
    assert not make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["job.key"]
    one, other = read_key(path, "one"), read_key(path, "other")
    assert one != other
    with pytest.raises(RefusedError, match="signature"):
        unsealed(one, sealed(other, Datagram(Kind.BEAT, 0, 0, 0, b"")))


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(b"k" * 64, 0o640, "others can read"), (b"short", 0o600, "5 bytes"), (b"k" * 5000, 0o600, "to 4096 are wanted")],
)
def test_a_key_that_others_know_or_guess_is_not_used(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=said):
        read_key(path, "job")
    with pytest.raises(KeyFileError, match=r"cannot read|not a file"):
        read_key(tmp_path, "job")


@FEW
@given(st.lists(st.integers(1, 3000), max_size=200))
def test_no_number_is_heard_twice(numbers: list[int]) -> None:
    window = ReplayWindow()
    heard: set[int] = set()
    for number in numbers:
        highest = max(heard, default=0)
        admitted = window.admits(number)
        assert admitted == (number not in heard and number > highest - 1024)
        heard |= {number} if admitted else set()


def test_senders_beyond_the_most_are_refused() -> None:
    replays = Replays(most=2)
    assert replays.admits(1, 1) and replays.admits(2, 1)
    assert not replays.admits(3, 1)
    assert replays.admits(1, 2)
    assert not replays.admits(1, 2)


def test_a_flood_is_cut_to_the_rate() -> None:
    limit = RateLimit(per_second=10, burst=5)
    assert sum(limit.admits("flood", 0.0) for _ in range(100)) == 5
    assert limit.admits("other", 0.0)
    assert sum(limit.admits("flood", 1.0) for _ in range(100)) == 5
