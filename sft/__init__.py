"""Stage 0: a policy that can talk, from conversations."""
