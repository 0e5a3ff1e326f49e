"""Where people meet scorers: best-of-N sessions, and what is kept of them."""
