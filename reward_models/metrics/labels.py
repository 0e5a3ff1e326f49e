"""Labels of a reply by what its user did next. Pure functions of columns, null as NaN.

A missing label is -100 among classes (torch's own ignore_index) and NaN among numbers: losses leave it out. The four
labels are those of Chai's open reward models (lmgym, 2023), but for a time that is not known: there it counted as a
quick answer, here the label is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmgym.data.column_kinds import Kind

MISSING = -100
MOST_MESSAGES = 200

FLAG = Kind("number", "0, 1 or null", lambda values: (values == 0) | (values == 1))
# generous limits: 10^9 messages, 300 years, e^1000 times the usual time
COUNT = Kind("number", "counts of 0 to 1e9, or null", lambda values: (values >= 0) & (values <= 1e9))
SECONDS = Kind(
    "number",
    "seconds up to 1e10, -1 for never, null for unknown",
    lambda values: (values == -1) | ((values >= 0) & (values <= 1e10)),
)
LOG_TIME = Kind(
    "number",
    "log times above -1 and up to 1000, -1 for never, null for unknown",
    lambda values: (values >= -1) & (values <= 1000),
)


def accepted_and_continued(accepted: ArrayLike, remaining: ArrayLike) -> NDArray[np.int64]:
    """1 where a reply was accepted and at least 2 messages of the user followed, else 0; -100 where either is null.

    accepted: [rows], 0 or 1; remaining: [rows], messages of the user still to come. Raises ValueError for other values.
    """
    kept, left = _checked("accepted", accepted, FLAG), _checked("remaining_user_messages", remaining, COUNT)
    label = ((kept == 1) & (left >= 2)).astype(np.int64)
    return np.where(np.isnan(kept) | np.isnan(left), MISSING, label)


def messages_first_days(d1: ArrayLike, d2: ArrayLike, d3: ArrayLike) -> NDArray[np.float64]:
    """Messages of the first three days, each day at most 200 of them and in units of 200: [rows] in [0, 3].

    A null day is one without messages. Raises ValueError for a negative count.
    """
    days = [_checked(name, values, COUNT) for name, values in (("d1", d1), ("d2", d2), ("d3", d3))]
    return np.sum([np.clip(np.nan_to_num(day), 0, MOST_MESSAGES) / MOST_MESSAGES for day in days], axis=0)


def responds_within(time_delta: ArrayLike, seconds: float = 180.0) -> NDArray[np.int64]:
    """1 where the user replied within so many seconds, 0 where later or never (-1); -100 where the time is null.

    time_delta: [rows] in seconds. Raises ValueError for a time below 0 that is not -1.
    """
    time = _checked("time_delta_till_user_response", time_delta, SECONDS)
    return np.where(np.isnan(time), MISSING, ((time >= 0) & (time <= seconds)).astype(np.int64))


def joint_bits(
    accepted: ArrayLike, remaining: ArrayLike, log_norm_time: ArrayLike, d1: ArrayLike, d2: ArrayLike, d3: ArrayLike
) -> NDArray[np.float64]:
    """Six bits a reply, [rows, 6]: accepted; 4 or more messages followed; answered in time; back on days 1, 2 and 3.

    log_norm_time: [rows], -1 for never; in time is strictly between -1 and 10. A null day is 0: the user did
    not come back. Any other null is a NaN label. Raises ValueError for values that `accepted_and_continued` and
    `messages_first_days` refuse, and times below -1.
    """
    kept, left = _checked("accepted", accepted, FLAG), _checked("remaining_user_messages", remaining, COUNT)
    time = _checked("log_norm_time_delta_till_user_response", log_norm_time, LOG_TIME)
    days = [_checked(day, values, COUNT) for day, values in (("d1", d1), ("d2", d2), ("d3", d3))]
    known = [
        np.where(np.isnan(column), np.nan, bit)
        for column, bit in ((kept, kept == 1), (left, left >= 4), (time, (time > -1) & (time < 10)))
    ]
    return np.stack([*known, *(~np.isnan(day) for day in days)], axis=1).astype(np.float64)


def _checked(name: str, values: ArrayLike, kind: Kind) -> NDArray[np.float64]:
    """The column, NaN for null. Raises ValueError for values that its kind does not take."""
    column = np.asarray(values, dtype=np.float64)  # None becomes NaN
    rows = np.flatnonzero(kind.refuses(column))
    if len(rows):
        raise ValueError(
            f"column {name} holds {len(rows)} of {len(column)} values out of range, the first {column[rows[0]]:g} in "
            f"row {rows[0] + 1}; needed: {kind.needed}; correct or drop those rows"
        )
    return column


@dataclass(frozen=True)
class Label:
    """A label of replies: a function of columns (null is NaN) to [rows] or [rows, labels].

    `names` are of the labels: one, or one a column of the result.
    """

    compute: Callable[..., NDArray]
    kinds: Mapping[str, Kind]
    """of the columns, in the order in which `compute` takes them"""
    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.kinds)


ACCEPTED_AND_CONTINUED = Label(
    accepted_and_continued, {"accepted": FLAG, "remaining_user_messages": COUNT}, ("accepted_and_continued",)
)
MESSAGES_FIRST_DAYS = Label(messages_first_days, {"d1": COUNT, "d2": COUNT, "d3": COUNT}, ("messages_first_days",))
RESPONDS_180S = Label(responds_within, {"time_delta_till_user_response": SECONDS}, ("responds_180s",))
JOINT_BITS = Label(
    joint_bits,
    {
        "accepted": FLAG,
        "remaining_user_messages": COUNT,
        "log_norm_time_delta_till_user_response": LOG_TIME,
        "d1": COUNT,
        "d2": COUNT,
        "d3": COUNT,
    },
    ("accepted", "continued", "answered", "back_d1", "back_d2", "back_d3"),
)
