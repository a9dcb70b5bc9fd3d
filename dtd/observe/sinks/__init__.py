"""Figures of jobs for other programs: TensorBoard, MLflow, Weights & Biases."""
