"""Draw pictures of the dashboards without Grafana, by plotting the results of each panel's queries.

``make pictures`` (``python -m pictures``) makes the pictures of docs/dashboards.
"""
