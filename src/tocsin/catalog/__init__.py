"""What the book of subscriptions is made of.

`ids` holds columns of ids, `sources` where conditions came from; `blocks` keeps both in the order
of dense ids, and `shelf` what is live of them. `directory` leads from ids to dense ids, `ends` says
which subscriptions are due, and `parts` takes a book apart to be written, and puts it together
again. `tocsin.catalog.subscriptions` is the book itself.
"""
