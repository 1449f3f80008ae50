"""Pictures of the dashboards without a Grafana: each panel's queries, asked of a Prometheus, plotted alike.

``make pictures`` (``python -m pictures``) makes those of docs/dashboards.
"""
