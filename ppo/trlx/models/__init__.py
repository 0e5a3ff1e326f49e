"""The places from which trlx programs import configs of methods."""
