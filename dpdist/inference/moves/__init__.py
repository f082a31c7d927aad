"""Split, regroup, merge, delete: changes of the set of components, accepted on the exact ELBO."""
