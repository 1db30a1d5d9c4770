"""Adapters: fanrank as the store, retriever or tool of other frameworks, one module each (docs/integrations)."""
