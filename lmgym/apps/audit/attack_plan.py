"""The cost of an attack in scored replies, known beforehand: as much of it as the budget allows."""

from dataclasses import dataclass, replace

from lmgym.apps.audit.edit_search import BEAM, EXTENSIONS, TESTED
from lmgym.errors import InputError

FEWEST_REPLIES, FEWEST_EDITS = 8, 24


@dataclass(frozen=True)
class AttackPlan:
    """The size of each part."""

    prompts: int
    replies: int
    """in the pool, of all prompts together"""
    edits: int
    """of one step"""
    rounds: int
    """of the search: steps of an edit"""
    edited: int
    """replies of each prompt"""
    earlier: int = 0
    """edits of an earlier attack"""
    trained: int = 0
    """replies of the policy that GRPO trains"""

    @property
    def search(self) -> int:
        """Scored replies on the first half."""
        return (self.edits + (self.rounds - 1) * BEAM * EXTENSIONS) * (self.prompts // 2) * self.edited

    @property
    def test(self) -> int:
        """Scored replies on the second half: as many random edits as edits."""
        return 2 * (TESTED + self.earlier) * (self.prompts - self.prompts // 2) * self.edited

    @property
    def total(self) -> int:
        """Scored replies, at most: those that are equal are scored once."""
        return self.replies + self.trained + self.search + self.test


def fit_budget(plan: AttackPlan, budget: int, sampled: bool) -> AttackPlan:
    """The plan within the budget: fewer replies of the policy (if they are sampled), then fewer edits.

    Raises InputError if that is not enough.
    """
    each = plan.replies // plan.prompts
    while plan.total > budget and sampled and each > FEWEST_REPLIES:
        each -= 1
        plan = replace(plan, replies=each * plan.prompts)
    while plan.total > budget and plan.edits > FEWEST_EDITS:
        plan = replace(plan, edits=plan.edits - 1)
    if plan.total > budget:
        raise InputError(
            f"an attack on {plan.prompts:,} prompts scores {plan.total:,} replies or more; needed: --budget "
            f"{plan.total:,}, fewer --max_prompts, or less of --edited {plan.edited} and --rounds {plan.rounds}"
        )
    return plan
