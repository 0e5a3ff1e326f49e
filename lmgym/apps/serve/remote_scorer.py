"""A scorer behind `lmgym serve rewards` as a scorer here: `http://HOST:PORT#NAME`.

An entry point of the group lmgym.scorers. The token comes from LMGYM_TOKEN.
"""

from collections.abc import Sequence

import numpy as np

from lmgym.apps.serve.lmgym_client import Client, RewardError
from lmgym.errors import InputError, one_line, shown
from lmgym.generation.model_server import parse_address, refuse_unreachable
from lmgym.scoring.protocol import ScorerFailed, read_scores
from lmgym.text import Conversation, Reply, Turn, messages

TRIAL = Conversation((Turn("user", "Hello"),))
FIRST_PATIENCE = 60.0
"""seconds that a server may take to start"""


class RemoteScorer:
    """Asks a server, which may be busy or restart: see `lmgym_client.Client`. Made by `load`."""

    def __init__(self, client: Client, name: str | None) -> None:
        self.client, self.name = client, name

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises ScorerFailed for a server that does not answer, or refuses what it is asked."""
        chats = [messages(c, reply) for c, reply in zip(conversations, replies, strict=True)]
        try:
            found = self.client.rewards(chats, self.name)
            return np.array(read_scores(found, len(chats)), dtype=np.float32)
        except (RewardError, ValueError, LookupError, TypeError) as error:
            raise ScorerFailed(one_line(str(error), 300)) from error


def load(path: str) -> RemoteScorer:
    """The scorer of `http://HOST:PORT#NAME`, or a server's first one; it is asked for a score first.

    Raises InputError for an address where no reward server answers, and for a scorer that it does not have.
    """
    url, _, name = path.partition("#")
    url = url.rstrip("/")
    try:
        parse_address(url)
    except InputError:
        raise InputError(
            "the address of a scorer is no plain one; needed: http://HOST:PORT#NAME of lmgym serve rewards, without a "
            "name, password or query (a token goes into the environment variable LMGYM_TOKEN)"
        ) from None
    refuse_unreachable(url, "rewards")
    try:
        RemoteScorer(Client(url, patience=FIRST_PATIENCE), name or None).score([TRIAL], ["Hello"])
    except ScorerFailed as error:
        raise InputError(
            f"{shown(path)} gives no scores: {error}; needed: the address of lmgym serve rewards"
        ) from error
    return RemoteScorer(Client(url), name or None)
