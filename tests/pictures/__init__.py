"""Pictures of the dashboards without Grafana: the results of each panel's queries are plotted similarly.

``make pictures`` (``python -m pictures``) makes those of docs/dashboards.
"""
