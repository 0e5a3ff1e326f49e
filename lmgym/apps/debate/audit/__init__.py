"""Audits of judges: whether a verdict moves with changes that say nothing about the answer."""
