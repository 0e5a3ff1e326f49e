"""Advantages and losses: pure functions of padded tensors, passed to the learner.

May import lmgym.errors and torch.
"""
