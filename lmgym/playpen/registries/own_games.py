"""Our own dialogue games, as the registry of games has them."""

from collections.abc import Mapping
from typing import Any

OWN_GAMES: Mapping[str, Any] = {}
