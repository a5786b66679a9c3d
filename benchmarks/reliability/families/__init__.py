"""The families of random targets with known answers: one module for each kind of density."""
