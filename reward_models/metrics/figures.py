"""Metrics of one score a row, and the checks and reasons that all of them share."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmgym.statistics import Estimate, notes
from reward_models.metrics.rank_statistics import Floats, Ints

Mask = NDArray[np.bool_]


class Metrics(dict[str, float | None]):
    """Figures by name, finite or None; `reasons` has why one is None and what was left out of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[str, str] = {}
        self.sizes = ""
        self._estimates: dict[str, list[Estimate]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on the numbers of rows and users, and on what the intervals cannot say."""
        found = (note for unit, estimates in self._estimates.items() for note in notes(estimates, unit))
        return tuple(filter(None, [self.sizes, *found]))

    def add_estimate(self, name: str, found: Estimate, unit: str, *reasons: str) -> None:
        """Records a figure with `name_low` and `name_high`, the ends of its interval over units of that name."""
        if found.value is None:
            self.add(name, None, *(reasons if any(reasons) else [found.reason]))
        else:
            for key, value in found.named(name).items():
                self.add(key, value, *(reasons if key == name else [found.reason]))
        self._estimates.setdefault(unit, []).append(found)

    def add_sizes(self, rows: int, users: NDArray | None) -> None:
        """Records how many rows and users the figures rest on."""
        self.add("rows", rows)
        self.sizes = f"{rows:,} rows"
        if users is not None:
            number = len(np.unique(users))
            self.add("users", number)
            self.sizes += f" of {number:,} users"

    def add(self, name: str, value: float | None, *reasons: str) -> None:
        """Records a figure; empty reasons are skipped, and None needs one that is not."""
        assert value is not None or any(reasons), name
        assert value is None or np.isfinite(value), (name, value)
        self[name] = None if value is None else float(value)
        if any(reasons):
            self.reasons[name] = "; ".join(filter(None, reasons))


def flag_column(name: str, values: ArrayLike, nullable: bool = False) -> Floats:
    """Flags as float64, null as NaN. Raises ValueError for values other than 0 and 1, and for null unless allowed."""
    flags = np.asarray(values, dtype=np.float64)  # None becomes NaN
    bad = np.flatnonzero(~(np.isin(flags, (0, 1)) | (nullable & np.isnan(flags))))
    if len(bad):
        raise ValueError(
            f"{name} holds {len(bad)} of {flags.size} values that are no flag, the first {flags.flat[bad[0]]:g} at "
            f"index {bad[0]}; needed: 0 or 1{' or null' if nullable else ''}; correct or drop those rows"
        )
    return flags


def check_lengths(**columns: NDArray) -> None:
    """Raises ValueError unless all columns, `scores` among them, are of the same rows, at least one."""
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or columns["scores"].ndim != 1:
        raise ValueError(f"arrays of shapes {shapes}; needed: one entry a row in each; gather all in the same way")
    if not len(columns["scores"]):
        raise ValueError("0 rows; needed at least 1; check the file and the filter of the evaluation rows")


def groups_left_out(groups: int, unit: str, reasons: Mapping[str, Mask]) -> str:
    """Numbers of groups that are left out for each reason, in words; empty if there are none."""
    counts = {why: int(where.sum()) for why, where in reasons.items()}
    return "; ".join(f"{count} of {groups} {unit} left out: {why}" for why, count in counts.items() if count)


def add_group_mean(metrics: Metrics, name: str, values: Floats | Mask, sizes: Ints, kept: Mask, *reasons: str) -> None:
    """Adds the mean over the groups that are kept, weighted by their rows."""
    metrics.add(name, np.average(values[kept], weights=sizes[kept]) if kept.any() else None, *reasons)
