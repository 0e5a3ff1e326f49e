"""Labels of what users did: a hand-made row for each branch, and the values that no log can hold."""

import math

import numpy as np
import pytest

from reward_models.metrics.labels import (
    JOINT_BITS,
    accepted_and_continued,
    joint_bits,
    messages_first_days,
    responds_within,
)

NAN = float("nan")


def test_accepted_and_two_or_more_messages_to_come_is_one_and_a_null_is_missing() -> None:
    found = accepted_and_continued([1, 1, 1, 0, None, 1], [2, 1, 9, 5, 5, None])
    assert found.tolist() == [1, 0, 1, 0, -100, -100]
    assert found.dtype == np.int64


def test_messages_are_summed_over_days_in_units_of_two_hundred_and_at_most_one_a_day() -> None:
    found = messages_first_days([100, None, 400, 0], [50, None, 200, None], [0, None, 201, 20])
    assert found.tolist() == pytest.approx([0.75, 0.0, 3.0, 0.1])


def test_a_reply_in_time_is_one_never_or_late_is_zero_and_an_unknown_time_is_missing() -> None:
    found = responds_within([0, 180, 180.5, -1, NAN, 1e9])
    assert found.tolist() == [1, 1, 0, 0, -100, 0]
    assert responds_within([100.0], seconds=60).tolist() == [0]


def test_each_joint_bit_has_its_own_rule() -> None:
    columns = {
        "accepted": [1, 0, None, 1, 1, 1],
        "remaining": [4, 3, 9, None, 4, 4],
        "log_norm_time": [0.0, -1, 9.99, 10, NAN, 11],
        "d1": [1, None, 0, 1, 1, 1],
        "d2": [None, 5, 1, 1, 1, 1],
        "d3": [2, 2, None, 1, 1, 1],
    }
    wanted = [
        [1, 1, 1, 1, 0, 1],
        [0, 0, 0, 0, 1, 1],
        [NAN, 1, 1, 1, 1, 0],
        [1, NAN, 0, 1, 1, 1],
        [1, 1, NAN, 1, 1, 1],
        [1, 1, 0, 1, 1, 1],
    ]
    np.testing.assert_array_equal(joint_bits(**columns), wanted)
    assert len(JOINT_BITS.names) == len(JOINT_BITS.columns) == 6


def test_a_time_just_above_minus_one_counts_as_answered() -> None:
    assert joint_bits([1], [4], [-0.5], [1], [1], [1])[0, 2] == 1.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: accepted_and_continued([0, 2, 3], [1, 1, 1]),
            r"column accepted holds 2 of 3 .* the first 2 in row 2;",
        ),
        (
            lambda: accepted_and_continued([0, 1], [1, -3]),
            r"remaining_user_messages holds 1 of 2 .* first -3 in row 2;",
        ),
        (lambda: messages_first_days([1], [-1], [None]), r"column d2 holds 1 of 1 .* -1 in row 1; needed: counts"),
        (
            lambda: responds_within([-1, None, -5, -7]),
            r"holds 2 of 4 .* first -5 in row 3; needed: seconds up to 1e10, -1 for never",
        ),
        (lambda: joint_bits([1], [1], [-5], [1], [1], [1]), r"log_norm_time_delta_till_user_response holds 1 .* -5"),
        (lambda: joint_bits([1], [1], [0], [1], [1], [-2]), r"column d3 holds 1"),
        (lambda: accepted_and_continued([1], [math.inf]), r"remaining_user_messages holds 1 .* inf in row 1; needed"),
        (lambda: accepted_and_continued([1], [1e300]), r"remaining_user_messages holds 1 .* 1e\+300 in row 1"),
        (lambda: responds_within([math.inf]), r"first inf in row 1"),
        (lambda: joint_bits([1], [1], [math.inf], [1], [1], [1]), r"first inf in row 1"),
        (lambda: messages_first_days([math.inf], [1], [1]), r"column d1 holds 1 of 1"),
    ],
)
def test_impossible_values_are_named_with_column_number_value_and_row(call, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_time_between_minus_one_and_zero_is_no_time() -> None:
    with pytest.raises(ValueError, match=r"-0\.5 in row 1"):
        responds_within([-0.5])
