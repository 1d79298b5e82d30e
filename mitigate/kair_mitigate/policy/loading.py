"""Loads a user's own policy, and protects the job from its mistakes.

`--policy my_module:Policy` names it. The controller and the simulation call it through `Guarded`.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real
from typing import Any, get_args

import numpy as np

from kair_engine.errors import InputError, UsageError
from kair_mitigate.policy.policies import NOTHING, Action, Kind, Policy, View

_EXAMPLE = "kair mitigate control JOB --policy my_module:Policy"
_KINDS = get_args(Kind)
_RULES = ("linear", "sqrt", "keep")


def own_policy(name: str) -> Callable[[], Policy]:
    """Return a factory of policies, given `module:class`. The module may be in the current directory.

    Raises UsageError if the module does not exist or does not contain a policy; InputError if it cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise UsageError(f"{name!r} is no policy: name it as module:class", _EXAMPLE)
    make = getattr(_module(module_name), attribute, None)
    if make is None:
        raise UsageError(f"module {module_name} has no {attribute}", _EXAMPLE)

    def fresh() -> Policy:
        try:
            made = make()
        except Exception as error:
            raise UsageError(f"{name}() failed, though policies are made without arguments: {_said(error)}") from error
        if not callable(getattr(made, "decide", None)):
            problem = f"{name} is no policy: it has no method decide(view)"
            raise UsageError(problem, "kair help mitigation has an example")
        return made  # type: ignore[no-any-return]  # as far as can be seen from outside

    fresh()
    return fresh


def _module(name: str) -> Any:  # noqa: ANN401
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:  # noqa: PTH109 (entries of sys.path are text)
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"cannot import {name}: {_said(error)}") from error
        raise UsageError(
            f"there is no module {name}, neither installed nor in the current directory", _EXAMPLE
        ) from error
    except (Exception, SystemExit) as error:
        raise InputError(f"cannot import {name}: {_said(error)}") from error


class Guarded:
    """Turns a policy's exceptions and impossible actions into no action, and reports each once.

    While a plan is pending, only a restart passes. Only `simulated` jobs can drop the slowest units.
    """

    def __init__(self, policy: Policy, name: str, report: Callable[[str], None], *, simulated: bool = False) -> None:
        self._policy, self._name, self._report, self._simulated = policy, name, report, simulated
        self._reported = set[str]()

    def decide(self, view: View) -> Action:
        """Return the policy's action if the job can carry it out, else NOTHING."""
        try:
            action = self._policy.decide(_read_only(view))
            why = next(_faults(action, view), None)
            if why is None and action.spare and not self._simulated:
                why = "answered spare units: a real job waits for all, and can only have a deadline"
        except (Exception, SystemExit) as error:
            why = f"failed: {_said(error)}"
        if why is None:
            return NOTHING if view.pending and action.kind != "kill_restart" else action
        if why not in self._reported:
            self._reported.add(why)
            self._report(f"policy {self._name} {why}; nothing is planned (step {view.step})")
        return NOTHING


def _read_only(view: View) -> View:
    """Return the view with read-only arrays."""
    arrays = {name: getattr(view, name).view() for name in ("sizes", "lowest", "highest", "compute_s", "done")}
    for array in arrays.values():
        array.flags.writeable = False
    return replace(view, **arrays)


def _faults(action: Any, view: View) -> Iterator[str]:  # noqa: ANN401
    """Yield the faults of an answer of `decide`; only the first counts, because each check assumes the ones before."""
    if not isinstance(action, Action):
        yield f"answered {type(action).__name__}, which is no Action"
    if action.kind not in _KINDS:
        yield f"answered kind {action.kind!r}: there are {', '.join(_KINDS)}"
    units = len(view.sizes)
    for name, array in (("sizes", action.sizes), ("micro_batches", action.micro_batches)):
        is_array = isinstance(array, np.ndarray) and array.shape == (units,) and array.dtype.kind in "iu"
        if array is not None and not is_array:
            yield f"answered {name} that are no array of {units} integers"
    yield from _faults_of_sizes(action, view)
    if action.kind == "adjust_lr" and not view.can_adjust_lr:
        yield "answered adjust_lr: the job's loader was given no optimizer="
    if action.kind == "claim" and not view.can_claim:
        yield "answered claim: this job's ranks cannot claim their samples"
    if action.learning_rate not in _RULES:
        yield f"answered learning_rate {action.learning_rate!r}: there are {', '.join(_RULES)}"
    if action.micro_batches is not None and (action.micro_batches < 1).any():
        yield "answered fewer than 1 micro-batch"
    if action.kind == "backup_workers" and not (action.spare or 0 < (action.deadline or 0) < np.inf):
        yield "answered backup_workers with neither a deadline above 0 nor spare units"
    if not 0 <= action.spare < units or not np.isin(action.units, np.arange(units)).all():
        yield f"answered units that are not there: the job has {units}"
    if not all(isinstance(value, Real) for value in action.reason.values()):
        yield "answered a reason with a value that is no number"


def _faults_of_sizes(action: Action, view: View) -> Iterator[str]:
    sizes = action.sizes
    if action.kind in {"adjust_bs", "adjust_lr"} and sizes is None:
        yield f"answered {action.kind} without sizes"
    if sizes is not None and ((sizes < view.lowest).any() or (sizes > view.highest).any() or not sizes.any()):
        yield f"answered sizes that leave their bounds ({view.lowest.min()} to {view.highest.max()})"
    if sizes is not None and sizes.sum() != view.batch and action.kind != "adjust_lr":
        yield f"answered sizes that do not add up to {view.batch}, which only adjust_lr may change"


def _said(error: BaseException) -> str:
    """Return the exception in a line, with its origin."""
    text = " ".join(str(error).split())[:200]
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""  # noqa: PTH119
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"
