"""Layer: boundaries. What runs inside a sandbox; standard library only."""
