"""A run as one page to look at: figures drawn once, as SVG and PNG, and the HTML around them."""
