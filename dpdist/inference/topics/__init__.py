"""Hierarchical Dirichlet process topic models: documents share topics, and the number of topics is learned."""
