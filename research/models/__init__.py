"""Writes models that packages carry in layouts of their own as folders of sentence-transformers, or for ONNX."""
