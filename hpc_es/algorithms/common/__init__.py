"""Parts that several strategies share, such as ranking, optimizers, stopping criteria."""
