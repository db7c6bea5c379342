"""Many runs side by side: methods x densities x seeds, and the table that comes of them."""
