"""How models answer perturbed texts: rules, what they change of an example, and the table of a comparison."""
