"""Translation: corpora, prepare, batches, search, translate, score, export."""
