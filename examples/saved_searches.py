"""Saved searches over items: words in titles, tags, and computed values."""

import tocsin

searches = tocsin.Matcher()
searches.subscribe("bikes", "category = 'bicycle' AND price + shipping < 300")
searches.subscribe("vintage", "ANY(tags) = 'vintage' AND NOT sold")
searches.subscribe("steel", "matches(title, 'steel frame -rust')")

items = [
    {"category": "bicycle", "price": 250, "shipping": 20, "title": "Road bike", "sold": False},
    {"category": "lamp", "price": 40, "tags": ["vintage", "brass"], "title": "Lamp", "sold": False},
    {"category": "bicycle", "price": 900, "shipping": 0, "title": "Steel frame, no rust"},
    {"category": "bicycle", "price": 900, "shipping": 0, "title": "Frame of steel, new"},
]
for item, ids in zip(items, searches.match_batch(items), strict=True):
    print(f"{item['title']}: {sorted(ids)}")

print(searches.explain("steel", items[2]))
