"""Models: families, allocations, likelihoods, and mixtures of these with their exact ELBO."""
