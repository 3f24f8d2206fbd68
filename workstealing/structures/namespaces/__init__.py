"""Namespaces with a due index: what the structures whose parts expire have in common."""
