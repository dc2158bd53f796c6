"""Loggers, one file per package (TensorBoard, MLflow, Weights & Biases): each receives every row of metrics.jsonl."""
