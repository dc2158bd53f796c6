"""Parts that several algorithms share: rankings, optimizers, genetics, queues."""
