"""Games of two players: task setups of self-play, and the pool of frozen opponents."""
