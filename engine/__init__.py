"""Host side, in data-flow order: records, text, vocabulary, segments, plan, backend, search."""
