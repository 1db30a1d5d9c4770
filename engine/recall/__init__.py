"""Beyond words and vectors: entities, times, conversations, and which of them a query needs."""
