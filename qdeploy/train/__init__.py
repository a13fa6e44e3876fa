"""Training by recipe: the schema, from a plan to a recipe, and what a recipe will do."""
