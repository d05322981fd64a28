"""One file per technology; each turns a wire format or a system facility into model types."""
