"""Plans: what they refuse, and that names tell runs apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.apps.lab.plan import Plan, Proxy, Run, plan_files, read_plan
from lmgym.apps.lab.steps import plan_steps
from lmgym.errors import InputError

TWO = Plan([Run("a"), Run("a", "grpo")], {"a": Proxy(pairs=100)})


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (replace(TWO, runs=[]), "the plan has no runs"),
        (replace(TWO, runs=[Run("a"), Run("a", seed=1)]), "two runs of one name: a_ppo_kl0_seed1 in world 0"),
        (replace(TWO, runs=[Run("b")]), "needs the proxy 'b', which the plan does not have"),
        (replace(TWO, watchers={"a": {"half": "c"}}), "needs the proxy 'c'"),
        (replace(TWO, runs=[Run("a", world=-1)]), "the world of run a_ppo_kl0_seed1"),
        (replace(TWO, runs=[Run("a", kl=float("nan"))]), "the KL weight of run"),
        (replace(TWO, proxies={"a": Proxy(pairs=8501)}), "a world of 90,000 rows has 8,500 beside the 500 held out"),
        (replace(TWO, proxies={"a": Proxy(pairs=1)}), "is to be trained on pairs 0 to 1"),
        (replace(TWO, proxies={"a": Proxy(fault="wrod", planted=0.1)}), "did you mean word?"),
        (replace(TWO, proxies={"a": Proxy(fault="word")}), "and a share above 0"),
        (replace(TWO, proxies={"a": Proxy(flipped=0.6, fault="word", planted=0.6)}), "flipped and planted together"),
        (replace(TWO, proxies={"a": Proxy(members=0)}), "members"),
        (replace(TWO, proxies={"a": Proxy(base="gpt2")}), "begins at 'gpt2'; needed: one of trunk, policy"),
        (replace(TWO, proxies={"a": Proxy(pairs=0, flipped=0.1)}), "is trained on logs; needed: no setting of pairs"),
        (replace(TWO, runs=[Run("a/b")], proxies={"a/b": Proxy()}), "needed: letters, digits and dashes"),
        (replace(TWO, pool=(1, 8)), "pool"),
    ],
)
def test_a_plan_that_nothing_can_be_run_with_is_refused_in_one_line(plan: Plan, message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan.check()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_plans_that_come_along_are_valid_and_have_no_two_steps_of_one_name_or_one_result() -> None:
    names = [path.stem for path in plan_files()]
    assert {"first", "figure", "alarms"} <= {*names}
    for name in names:
        steps = plan_steps(read_plan(name)[1])
        assert len({step.name for step in steps}) == len({step.done for step in steps}) == len(steps)


def test_every_step_of_a_plan_is_behind_those_that_it_needs() -> None:
    for path in plan_files():
        seen: set[str] = set()
        for step in plan_steps(read_plan(path.stem)[1]):
            assert {*step.needs} <= seen, step.name
            seen.add(step.name)


def test_two_different_proxies_have_two_different_commands() -> None:
    """A folder's record tells by the command whether a proxy is the one that the plan has."""
    recipes = [
        Proxy(), Proxy(pairs=100), Proxy(first=100), Proxy(flipped=0.1), Proxy(fault="word", planted=0.1),
        Proxy(fault="format", planted=0.1), Proxy(fault="word", planted=0.2), Proxy(seed=2), Proxy(heads=4),
        Proxy(pairs=0), Proxy(base="policy"),
    ]  # fmt: skip

    def commands(proxy: Proxy) -> tuple[str, ...]:
        steps = plan_steps(replace(TWO, proxies={"a": proxy}))
        return next(step.words for step in steps if step.name == "world 0: proxy a")

    assert len({commands(recipe) for recipe in recipes}) == len(recipes)


def test_a_plan_is_read_from_a_file_and_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from lmgym.apps.lab.plan import Plan, Proxy, Run\n"
        "PLAN = Plan([Run('mine', 'best_of_n', world=7)], {'mine': Proxy(spec='FILE.py:score')})\n"
    )
    path, plan = read_plan(str(file))
    assert path == file
    assert plan.worlds == [7]
    # a scorer of one's own is not trained, and needs no model to begin at
    assert [step.name for step in plan_steps(plan)] == [
        "world 7", "world 7: untrained policy", "world 7: policy", "world 7: pool", "world 7: pool by mine",
    ]  # fmt: skip
    file.write_text("PLAN = 3\n")
    with pytest.raises(InputError, match=r"has no plan; needed: PLAN = Plan"):
        read_plan(str(file))
    with pytest.raises(InputError, match="did you mean figure"):
        read_plan("figur")
