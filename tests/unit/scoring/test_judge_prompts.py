"""Long texts in a judge's prompt: what is left out, and what is not."""

from lmgym.scoring.judge_prompts import _end, _ends


def test_a_text_of_the_most_characters_is_whole_and_a_longer_one_says_how_many_are_left_out() -> None:
    assert _ends("abcdef", 6) == _end("abcdef", 6) == "abcdef"
    both, last = _ends("abcdefgh", 4), _end("abcdefgh", 4)
    assert both.startswith("ab")
    assert both.endswith("gh")
    assert last.endswith("efgh")
    assert "4" in both
    assert "4" in last
    assert "cdef" not in both
