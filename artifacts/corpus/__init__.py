"""Reading corpora: BEIR files, folders of texts, tables."""
