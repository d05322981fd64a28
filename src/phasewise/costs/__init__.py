"""What a step costs and why: modelled from a model and an accelerator, or fitted to observed steps."""
