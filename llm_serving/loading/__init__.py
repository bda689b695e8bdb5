"""From weight files to one frozen configuration, stored weights and a tokenizer."""
