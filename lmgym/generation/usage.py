"""Requests and tokens that a server has counted, and their cost."""

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Usage:
    """Sums over the requests of a generator, whose threads add to it."""

    requests: int = 0
    """answered ones; a repeated request counts once"""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count an answered request."""
        with self.lock:
            self.requests += 1
            self.prompt_tokens += prompt_tokens
            self.completion_tokens += completion_tokens

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """In the currency of the prices, which are per million tokens."""
        return (self.prompt_tokens * prompt_price + self.completion_tokens * completion_price) / 1e6
