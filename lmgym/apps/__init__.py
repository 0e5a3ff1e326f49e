"""Applications, each whole in its folder; the core and the stages know none of them.

May import the core and the stages; another app only where the app's own `__init__.py` names it.
"""
