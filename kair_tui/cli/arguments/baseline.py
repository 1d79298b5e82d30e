"""The baseline of a question: the one that was named, else the one in use."""

from pathlib import Path

from kair_engine.results.runs.changes import ChosenBaseline


def chosen_baseline(wanted: str | None, store: Path) -> ChosenBaseline | None:
    """None where none is wanted (`none`), or none is named and none in use. Raises UsageError for an unknown one."""
    if wanted == "none" or (wanted is None and not (store / ".baseline").exists()):
        return None
    from kair_engine.baselines.files import Baselines  # loads NumPy and msgspec

    kept = Baselines(store)
    name = wanted or kept.current()
    return None if name is None else ChosenBaseline(name, kept.load(name), named=wanted is not None)
