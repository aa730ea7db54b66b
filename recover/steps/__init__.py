"""How each remedy goes: pure planners that turn a look into a straight line of acts."""
