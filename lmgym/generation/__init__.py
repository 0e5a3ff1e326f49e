"""Text generation: the Generator protocol, transformers in this process, OpenAI-compatible servers.

May import models.forward and what is below it.
"""
