"""Measures quality: systems on test collections, variants of training and of expansion, and what the demo answers."""
