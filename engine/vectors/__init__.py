"""Evidence from embeddings: encoders, stored vectors, interactions, approximate indexes."""
