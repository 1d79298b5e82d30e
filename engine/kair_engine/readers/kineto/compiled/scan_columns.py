"""Defines the results of a scan of events: why it ended, the columns of its rows, and types of argument values.

Defines also the marks of parsed events, by which similar events need no parsing: one for each number that may differ
and for the name, in the event's order; the last one for the event itself. Compiled code keeps these numbers: after a
change, touch scan.py, template_match.py and template_store.py.
"""

from typing import Final

# Why a scan ended.
DONE: Final = 0
NO_ROOM: Final = 1
"""The columns are full: the caller takes them, and the scan goes on."""
UNKNOWN: Final = 2
"""Something in the text is uncertain."""
ENOUGH: Final = 3
"""The requested number of events is parsed."""

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


# Columns of marks: begin, end, and kind.
BEGIN: Final = 0
END: Final = 1
WHAT: Final = 2
ARGS_BEGIN: Final = 3
ARGS_END: Final = 4
"""This and the next apply to a whole event: the position of its arguments, else -1."""
WITHOUT: Final = 5
"""Missing times, as bits like in a scan."""
ROW_NUMBER: Final = 6
MARK_COLUMNS: Final = 7

# Kinds of marks: up to SIZE, the scan's column of the number.
AN_INTEGER: Final = 5
"""A whole number without a column."""
A_NUMBER: Final = 6
A_NAME: Final = 7
NOTHING: Final = 8
A_TEXT: Final = 9
"""A whole number, without a sign, between the quotes of a text."""
ROW: Final = 10
"""An event that becomes a row."""
NO_ROW: Final = 11
