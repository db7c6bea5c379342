"""How devices compute, who computes, and the reference simulator."""
