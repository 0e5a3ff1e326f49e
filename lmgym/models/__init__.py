"""Models of transformers: loading, saving, heads, adapters, quantization, memory.

May import data and what is below it.
"""
