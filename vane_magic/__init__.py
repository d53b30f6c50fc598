"""Ask a local Vane from IPython and Jupyter."""
