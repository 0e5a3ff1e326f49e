"""Trainers of Playpen: their base class, callbacks, and games as task setups for learning."""
