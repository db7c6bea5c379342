"""Many runs side by side: comparisons of your own and the paper's, their tables and figures."""
