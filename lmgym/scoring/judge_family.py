"""Whether a judge's model and a policy are of one family, whose words a judge tends to prefer.

Models that run here are of one family if they have one vocabulary. Of a served model only its name is known: it is of
the policy's family if the word that its name begins with is in the policy's path.
"""

import os
import re
from typing import Any

from lmgym.errors import InputError, one_line
from lmgym.generation.model_specs import read_model_spec
from lmgym.scoring.named_scorers import JUDGE, RUBRIC

LEAST = 4  # letters of a family's name


def family_notes(scorers: dict[str, str], policy: str, tokenizer: Any) -> list[str]:
    """A line on each judge among the scorers, paths by name, whose model is of the policy's family."""
    return [
        f"{name} judges by a model of the policy's own family, and judges tend to prefer their own style: lmgym audit "
        f"{one_line(path, 80)} --base {one_line(policy, 80)} measures by how much"
        for name, path in scorers.items()
        if _is_judge(path) and of_one_family(path, policy, tokenizer)
    ]


def _is_judge(path: str) -> bool:
    return bool(JUDGE.fullmatch(path) or RUBRIC.fullmatch(path))


def of_one_family(path: str, policy: str, tokenizer: Any) -> bool:
    """True if the model of a judge's spec is of the policy's family; False where that is not known."""
    from lmgym.scoring.rubrics import read_spec

    try:
        model = read_spec(path).model
        spec = read_model_spec(model)
        if not spec.served and os.path.isdir(model):
            from lmgym.models.loading import load_tokenizer

            return load_tokenizer(model).get_vocab() == tokenizer.get_vocab()
    except (InputError, OSError, ValueError):  # what is wrong with a spec is said where it loads
        return False
    begins = re.match(rf"[a-z]{{{LEAST},}}", spec.model.rpartition("/")[2].casefold())
    return bool(begins and begins[0] in policy.casefold())
