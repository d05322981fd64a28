"""What a step costs and why: the physics of a model on an accelerator, and costs fitted to seen steps."""
