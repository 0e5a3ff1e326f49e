"""Cuts of a judge's scores that are no rising numbers are refused before anything is scored."""

from collections import Counter

import pytest

from lmgym.apps.audit.agree.judging import check_judge
from lmgym.apps.audit.agree.labels import Labels
from lmgym.apps.audit.agree.levels import levels_of
from lmgym.errors import InputError


@pytest.mark.parametrize("cuts", ["middle", "nan", "inf", "-inf", "", "1,2"])
def test_one_cut_between_two_labels_is_a_finite_number(cuts: str) -> None:
    labels = Labels(False, levels_of(["0", "1"]), [], [], [], Counter(), True, "prompt")
    with pytest.raises(InputError, match="needed: auto, scale, shares, or 1 rising number between the levels"):
        check_judge("judge.py:number", labels, cuts)
    check_judge("judge.py:number", labels, "0.5")
