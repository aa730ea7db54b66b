"""The words of the tool: frozen data only, nothing here decides, reads or changes anything."""
