"""The offline half: everything that needs torch and transformers (extra `pipeline`)."""
