"""Price alerts: people set limits for firms, quotes come in, and limits move."""

import tocsin

quote = tocsin.EventType("Quote", firm=str, price=float)
alerts = tocsin.Matcher(quote)
condition = "firm = :firm AND price >= :limit"
alerts.subscribe("ann", condition, {"firm": "IBM", "limit": 120.0})
alerts.subscribe("ben", condition, {"firm": "SAP", "limit": 200.0})

for price in (118.5, 121.0, 119.0):
    print(f"IBM at {price}: notify {alerts.match({'firm': 'IBM', 'price': price})}")

alerts.update("ann", params={"limit": 118.0})  # the firm stays
print(f"after the limit moved: notify {alerts.match({'firm': 'IBM', 'price': 119.0})}")
