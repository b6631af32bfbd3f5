"""The collections of a process, and the swap of a bundle while it is searched."""
