"""Hierarchical Dirichlet process topic models: documents share topics, whose number is learned."""
