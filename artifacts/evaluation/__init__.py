"""Parts of the evaluation that know nothing of the search engine: judgments, runs, measures, the report."""
