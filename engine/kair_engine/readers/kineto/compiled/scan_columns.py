"""Defines the results of a scan of events: why it ended, the columns of its rows, and types of argument values.

`scan.c` has the same numbers.
"""

from typing import Final

# Why a scan ended.
DONE: Final = 0
NO_ROOM: Final = 1
"""The columns are full: the caller takes them, and the scan goes on."""
UNKNOWN: Final = 2
"""Something in the text is uncertain."""

# Columns of rows: an event's numbers, the positions of its texts and arguments, and the event's own.
START: Final = 0
DURATION: Final = 1
CORRELATION: Final = 2
EXTERNAL_ID: Final = 3
SIZE: Final = 4
ODD: Final = 5
"""Times that are missing or no plain numbers, as bits: 1 the start, 2 the duration."""
TS: Final = 6
DUR: Final = 8
NAME: Final = 10
CAT: Final = 12
PID: Final = 14
TID: Final = 16
ARGS: Final = 18
PH: Final = 20
EVENT: Final = 22
"""From TS on two columns each: begin and end."""
SHAPE: Final = 23
PARSED: Final = 24
NUMBER: Final = 25
"""The whole number in the first text of its inputs, or in the second after an empty one; -1 for none."""
COLUMNS: Final = 26

# Values of arguments without a column.
OTHER: Final = -1
MAYBE_INTEGER: Final = -2
MAYBE_TEXT: Final = -3
INPUTS: Final = -4
