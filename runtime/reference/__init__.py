"""A decoder in plain torch: the model that the reference runner cuts into stages."""
