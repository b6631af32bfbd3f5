"""Reading corpora: BEIR files, folders of texts, declared fields."""
