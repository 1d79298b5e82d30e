"""A loader that is asked for what it cannot do says so in one line."""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import kair_mitigate
from kair_mitigate import orders, restarts

pytestmark = [pytest.mark.live, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]


def test_a_second_loader_of_a_run_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from kair_mitigate import training_loader

    monkeypatch.setattr(training_loader, "_is_made", False)
    data = torch.utils.data.TensorDataset(torch.arange(8))
    orders.make_key(tmp_path)
    kair_mitigate.loader(data, 4)
    monkeypatch.setenv(restarts.RUN_FOLDER, str(tmp_path))
    kair_mitigate.loader(data, 4)
    with pytest.warns(RuntimeWarning, match="a second kair_mitigate.loader in one process: plans, status and") as told:
        kair_mitigate.loader(data, 4)
    assert [one.filename for one in told] == [__file__]
    monkeypatch.delenv(restarts.RUN_FOLDER)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kair_mitigate.loader(data, 4)  # outside of a run nothing is mixed up


def test_what_chooses_other_samples_is_refused_in_a_line() -> None:
    import torch

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc]
        """Has no samples by number."""

        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    with pytest.raises(TypeError, match=r"needs samples by number, which Stream does not have; kair mitigate shards"):
        kair_mitigate.loader(Stream(), 4)
    data = torch.utils.data.TensorDataset(torch.arange(8))
    with pytest.raises(TypeError, match="takes no sampler: its plan chooses the samples"):
        kair_mitigate.loader(data, 4, sampler=torch.utils.data.SequentialSampler(data))
