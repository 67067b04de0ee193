"""Data sets: where they come from, the one prepared form that training reads, augmentation on tensors."""

from lbdn.data.prepared import Dataset, balanced_subset, load_dataset, prepare

__all__ = ["Dataset", "balanced_subset", "load_dataset", "prepare"]
