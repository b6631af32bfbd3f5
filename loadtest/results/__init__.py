"""Measured figures: their files, and the tables and pages made from them."""
