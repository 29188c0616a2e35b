"""How numbers are stored and multiplied: formats, scaling, recipes, emulated and native."""
