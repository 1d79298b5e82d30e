"""How many samples ranks take in a step, where the job says so, and what it says of their times.

A rank that is given more samples than its peers takes longer, and is no slower for that.
"""

from typing import Final

import numpy as np

from kair_engine.arrays import Floats, Ints

STEPS_OF_A_CHANGE: Final = 5
"""So many steps from a change of sizes on say nothing of ranks: what is compiled is compiled for the new ones."""


def lasting_changes(samples: Floats) -> Ints:
    """Return the positions of steps from which on ranks take other samples (steps × ranks; NaN: unknown) than before.

    Sizes count that two steps in a row have: an epoch's last step is smaller, and changes nothing.
    """
    known, found = np.full(samples.shape[1], np.nan), list[int]()
    differ = samples[:-1] - samples[1:]
    for at in np.flatnonzero(((differ == 0) | np.isnan(differ)).all(axis=1) & (differ == 0).any(axis=1)).tolist():
        now = np.where(np.isnan(samples[at]), known, samples[at])
        if (np.abs(now - known) > 0).any():  # NaN is no change
            found.append(at)
        known = now
    return np.array(found, np.int64)


def of_the_samples(samples: Floats, usual: Floats) -> Floats:
    """Return the factor by which the time of a sample counts where ranks take other numbers of samples than usual.

    What a step takes whatever its samples makes each of few longer, and nobody knows how much that is: half of what
    ranks usually take is taken for it. Of larger batches it would only explain less, so all is the samples'.
    """
    return np.asarray(np.minimum(2 * samples / (samples + usual), 1.0))
