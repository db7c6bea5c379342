"""The paper's tables and figures, each from one file: run, resumed, tabled and drawn."""
