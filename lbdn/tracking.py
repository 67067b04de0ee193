"""One MLflow run a model."""
