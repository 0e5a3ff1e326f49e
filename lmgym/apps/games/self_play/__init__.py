"""Games of two players: one policy for both sides, frozen opponents, matches between policies."""
