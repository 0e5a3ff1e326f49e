"""The demos: steps that resume, tables of results, and the demo on a real model."""
