"""The bundle format: manifest, reader, writer, and checks."""
