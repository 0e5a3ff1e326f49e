"""The configs of trlx programs."""
