"""What is fitted: families, allocations, likelihoods, and the mixture of them with its exact ELBO."""
