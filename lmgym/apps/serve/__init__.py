"""HTTP servers of what was trained: rewards for other libraries' trainers, best-of-N as an OpenAI server, pages.

May import the core, the stages and the apps `chat` and `interop`.
"""
