"""The parameters that a server with OpenAI's interface takes: found out by what it refuses, once, and remembered.

Newer models of OpenAI take `max_completion_tokens` in place of `max_tokens`, and no temperature but their own. What
makes no difference is left out; a greedy reply that cannot be had is sampled, and that is said.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.generation.model_server import Refusal
from lmgym.generation.openai_answers import Warn

RENAMED = {"max_tokens": "max_completion_tokens"}
NEUTRAL = {"temperature": 1.0, "top_p": 1.0}
WITHOUT = {
    "temperature": "takes no temperature: its replies are sampled, where the likeliest one was asked for",
    "seed": "takes no seed: no reply can be repeated",
}
"""what to say of a setting that is left out although it makes a difference"""


@dataclass
class TakenParameters:
    """The parameters that a server takes."""

    warn: Warn
    renamed: set[str] = field(default_factory=set)
    left_out: set[tuple[str, Any]] = field(default_factory=set)
    """names with values; a seed is left out whatever it is"""

    def fit(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """A request as the server takes it."""
        kept = {name: value for name, value in content.items() if _entry(name, value) not in self.left_out}
        return {RENAMED[name] if name in self.renamed else name: value for name, value in kept.items()}

    def learn(self, refusal: Refusal, content: Mapping[str, Any]) -> bool:
        """True if the request can be sent otherwise, as `fit` does from now on."""
        sent = self.fit(content)
        for name, other in RENAMED.items():
            if name in sent and re.search(rf"\b{other}\b", refusal.text):
                self.renamed.add(name)
                return True
        named = str(refusal.error.get("param") or "")
        for name in WITHOUT.keys() | NEUTRAL.keys():
            if name not in sent or not (named == name if named else re.search(rf"\b{name}\b", refusal.text)):
                continue
            value, makes_none = sent[name], sent[name] == NEUTRAL.get(name)
            if not (makes_none or name == "seed" or (name == "temperature" and value == 0)):
                return False
            self.left_out.add(_entry(name, value))
            if not makes_none:
                self.warn(name, WITHOUT[name])
            return True
        return False


def _entry(name: str, value: Any) -> tuple[str, Any]:
    return name, value if name in NEUTRAL else None
