"""The stages of the study, one click command each."""
