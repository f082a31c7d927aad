"""Trees of clusters, made by merging the fitted clusters down to one, and cuts of these trees."""
