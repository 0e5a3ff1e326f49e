"""Settings of an entry of the registry of models: its config, its context, and what is removed at the end of a reply.

An eos that is written out is removed at the end of a reply only: removed anywhere, it would change replies that quote
it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError, shown, shown_path
from lmgym.generation.model_server import Usage, refuse_unreachable
from lmgym.generation.protocol import Completion, Sampling
from lmgym.text import Conversation


def model_config(spec: Spec) -> Mapping[str, Any]:
    """The entry's model_config. Raises InputError if it is no object."""
    config = spec.get("model_config") or {}
    if not isinstance(config, Mapping):
        raise InputError(f"model_config of {spec.name} is {shown(config)}; needed: an object")
    return config


def culled_end(config: Mapping[str, Any]) -> re.Pattern[str] | None:
    """The pattern of an eos that is written out at the end of a reply. Raises InputError for a faulty one."""
    pattern = config.get("eos_to_cull")
    if not pattern:
        return None
    try:
        return re.compile(rf"(?:{pattern})\s*\Z")
    except (re.error, TypeError) as error:
        raise InputError(
            f"eos_to_cull {shown(pattern)} is not a regular expression: {error}; needed: such as '<\\\\|im_end\\\\|>'"
        ) from error


def context_size(spec: Spec) -> int | None:
    """Tokens of the entry's context_size, such as 2048, "8k" or "128k"; None without one. Raises InputError."""
    size = spec.get("context_size")
    if size in (None, ""):
        return None
    found = re.fullmatch(r"\s*(\d{1,9})\s*([kKmM]?)\s*", str(size))
    if not found or not int(found[1]):
        raise InputError(
            f"context_size {shown(size)} of {spec.name} ({shown_path(spec.source)}) is no number of tokens; needed: "
            'such as "2048" or "128k"'
        )
    return int(found[1]) * {"": 1, "k": 1024, "m": 1024**2}[found[2].lower()]


@dataclass(frozen=True)
class CulledReplies:
    """The replies of another generator, without an eos that is written out at their end, and without white space."""

    generator: Any
    end: re.Pattern[str] | None

    @property
    def usage(self) -> Usage | None:
        """The tokens that the generator has counted; None if it counts none."""
        return getattr(self.generator, "usage", None)

    @property
    def concurrency(self) -> int:
        """Requests that a server is sent at once; 1 of a model in this process."""
        return getattr(self.generator, "concurrency", 1)

    def refuse_unreachable(self) -> None:
        """Raises InputError if it is a server's and nothing listens there."""
        if base_url := getattr(self.generator, "base_url", ""):
            refuse_unreachable(base_url, self.generator.model)

    def reply(self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Any = None) -> Any:
        """n replies to each conversation."""
        found = self.generator.reply(conversations, n, sampling, progress)
        return [[self._culled(completion) for completion in some] for some in found]

    def _culled(self, completion: Completion) -> Completion:
        text = self.end.sub("", completion.text) if self.end else completion.text
        return replace(completion, text=text.strip())
