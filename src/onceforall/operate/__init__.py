"""What a person does to a query from outside: detaching it. Neither the query's code nor a
running query is needed.
"""
