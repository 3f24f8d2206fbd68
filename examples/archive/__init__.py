"""A small web archive: one program in which every part of the package has its place.

Run it from the checkout: `make story`
"""
