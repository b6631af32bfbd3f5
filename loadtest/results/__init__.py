"""Measured figures: the files they are recorded in, and the tables and pages made from these."""
