"""Hand-written layers of a few families for CPU: optional, equal in results, never required.

May import torch, transformers and lmgym.models; nothing outside lmgym.models imports it.
"""
