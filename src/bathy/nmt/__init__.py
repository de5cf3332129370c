"""Translation from raw text to a served model: corpora, prepare, train, translate, score, export."""
