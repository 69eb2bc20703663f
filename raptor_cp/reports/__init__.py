"""Reports: JSON, traces, plots, pages."""
