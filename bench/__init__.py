"""What the bound costs: time and memory beside an unconstrained network, and how they grow."""
