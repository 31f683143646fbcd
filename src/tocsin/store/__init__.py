"""The subscription store: numbered versions of a set of subscriptions that several processes share.

`subscription_store` is the class that users hold, `replay` applies the changes between two versions
to a matcher. How a store lies on disk is `tocsin.storage`'s business.
"""
