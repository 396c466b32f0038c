"""The families of the zoo. Reading order: bert, encoder_model, model, heads."""
