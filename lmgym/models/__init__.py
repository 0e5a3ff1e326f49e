"""Decoders and encoders of transformers: loading, saving, packed forward, frozen layers, adapters, memory.

May import the base layer (text, errors, config), data, runs and distributed; knows no stage.
"""
