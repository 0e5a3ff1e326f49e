"""Text generation: the Generator protocol, transformers in this process, vLLM, and servers of others.

May import models.forward and what is below it.
"""
