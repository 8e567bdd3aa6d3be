"""What becomes of the figures: the file that keeps them, the arithmetic, the targets, and the
page with its pictures.
"""
