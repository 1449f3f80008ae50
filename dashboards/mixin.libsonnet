// The dashboards in the format that mixin tools expect (jsonnet, mixtool, Tanka). Rules and alerts are plain YAML in
// alerts/, for Prometheus itself: the jsonnet of Debian 12 cannot read their texts.
{
  grafanaDashboards+:: {
    'innoscope-fleet.json': import 'grafana/innoscope-fleet.json',
    'innoscope-server.json': import 'grafana/innoscope-server.json',
    'innoscope-dirty-page.json': import 'grafana/innoscope-dirty-page.json',
    'innoscope-contention.json': import 'grafana/innoscope-contention.json',
    'innoscope-agent.json': import 'grafana/innoscope-agent.json',
  },
}
